"""Attack: what hostile clients learn from, and upload instead; and the attacks of the literature by name."""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedpart import Dataset
from fedpart.registry import Registry
from fedpart.updates.update import PSI, Update


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

    What no honest client of the cohort sends stays as it is."""
    for part in own.parts:
        if seen := [update.parts[part] for update in honest if part in update.parts]:
            own.parts[part] = invent(torch.stack(seen))


@ATTACKS.register("constant")
class Constant(Attack):
    """Every number is ``value``."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = value

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        replaced(own, lambda value: value.clone().fill_(self.value))


ATTACKS.register("nan")(lambda: Constant(math.nan))  # refused: a run goes on with on_client_error: skip


@ATTACKS.register("inner")
class Inner(Attack):
    """Inner product manipulation (Xie et al. 2020): the honest clients' mean, times ``-scale``.

    The sum's inner product with it is to be below 0."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        colluding(own, honest, lambda seen: seen.mean(dim=0).mul_(-self.scale))


@ATTACKS.register("labels")
class Labels(Attack):
    """Class y is called K - 1 - y, in training and for psi."""

    def shard(self, shard: Dataset, classes: int) -> Dataset:
        if not isinstance(shard.targets, Tensor) or shard.targets.is_floating_point():
            raise ValueError("The attack 'labels' is for targets that are labels; choose another.")
        return shard.relabelled(classes - 1 - shard.targets)


@ATTACKS.register("little")
class Little(Attack):
    """A little is enough (Baruch et al. 2019): the honest mean, less ``deviations`` standard deviations."""

    def __init__(self, deviations: float = 1.5) -> None:
        self.deviations = deviations

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        colluding(
            own, honest, lambda seen: seen.mean(dim=0) - self.deviations * seen.std(dim=0, correction=0)
        )


@ATTACKS.register("psi")
class Psi(Attack):
    """psi's gradient times ``-scale``; hostile are clients of the chunks from 2 on, who send one."""

    on_psi = True

    def __init__(self, scale: float = 100.0) -> None:
        self.scale = scale

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        if own.psi is not None:
            own.parts[PSI] = own.psi * -self.scale


@ATTACKS.register("scale")
class Scale(Attack):
    """All that is uploaded, times ``scale``."""

    def __init__(self, scale: float = 100.0) -> None:
        self.scale = scale

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        replaced(own, lambda value: value * self.scale)


@ATTACKS.register("sign")
class Sign(Scale):
    """All that is uploaded with the sign flipped, times ``scale``."""

    def __init__(self, scale: float = 10.0) -> None:
        super().__init__(-scale)
