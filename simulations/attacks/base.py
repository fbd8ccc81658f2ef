"""Attack: what hostile clients learn from, and what they upload in place of what they have computed."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedpart import Dataset
from fedpart.registry import Registry
from fedpart.updates.update import Update


class Attack:
    """Subclass it in a file of its own and register it: ``@ATTACKS.register("name")``.

    It is made with ``attack.options``. There are attacks in simulations only: no deployed client knows them.

    Attributes:
        on_psi: whether hostile clients are drawn among those who send psi's gradient: chunks 2 to C.
    """

    on_psi: ClassVar[bool] = False

    def shard(self, shard: Dataset, classes: int) -> Dataset:
        """What a hostile client learns from, which has ``shard``."""
        return shard

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        """Change what a hostile client sends, in place: ``own``, which it has computed as it was asked to.

        ``honest`` is what the honest clients of its cohort send, which the strongest of attackers know.
        """


ATTACKS: Registry[Callable[..., Attack]] = Registry("attack", makes=(Attack,))


def replaced(own: Update, change: Callable[[Tensor], Tensor]) -> None:
    """Put ``change`` of it in the place of each cell's change and of psi's gradient."""
    for part, tensor in own.parts.items():
        own.parts[part] = change(tensor)


def colluding(own: Update, honest: Sequence[Update], invent: Callable[[Tensor], Tensor]) -> None:
    """Put what is invented from the honest clients' vectors ``[n, size]`` in the place of each of one's own.

    What no honest client of the cohort sends stays as it is.
    """
    for part in own.parts:
        if seen := [update.parts[part] for update in honest if part in update.parts]:
            own.parts[part] = invent(torch.stack(seen))
