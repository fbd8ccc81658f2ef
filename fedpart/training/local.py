"""How a client trains: the settings of its steps, and SGD from the server's values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedpart.training.optimisers import DecaySettings, SGDSettings, SlicedOptimiser, weight_decays
from fedpart.training.settings import documented, setting


@documented
@dataclass(frozen=True)
class LocalSettings(DecaySettings):
    """How a client trains: torch's SGD on its shard, from the server's values in every round.

    Learning rate, batch size and epochs are App. J.2's for MNIST: 5e-2, 64, 1.
    """

    learning_rate: float = setting(5e-2, "of local SGD", gt=0)
    batch_size: int = setting(64, "examples per local step", ge=1)
    epochs: int = setting(1, "passes over the shard per round", ge=1)
    momentum: float = setting(0.0, "of local SGD, anew in every round and for every partition", ge=0, lt=1)
    psi_batch: Literal["shard"] | int = setting(
        "shard",
        "examples behind a client's psi gradient: the whole shard (the paper's MNIST), or a number drawn at "
        "random (its CIFAR-10: one batch)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.psi_batch != "shard" and not (isinstance(self.psi_batch, int) and self.psi_batch >= 1):
            raise ValueError(f"psi_batch is 'shard' or a number of examples, got {self.psi_batch!r}.")

    @cached_property
    def sgd(self) -> SGDSettings:
        """The optimiser of a client's steps."""
        return SGDSettings(self.learning_rate, self.momentum)

    def decays(self, shares: Sequence[float]) -> tuple[float, ...]:
        """Weight decay of each partition, see :func:`.weight_decays`."""
        return weight_decays(self.weight_decay, shares, self.decay_scaling)


class LocalSGD:
    """SGD on a client: some steps from the server's values of a vector, anew in every round.

    What is stepped is the change itself, which is small: a difference of final and first values would be
    rounded as they are.

    Args:
        origin: gives the server's values ``[N]``, which are never changed; not called if nobody needs them.
        settings: of SGD.
        weight_decay: of this vector.
        steps: how many will follow.
        final: whether ``values`` are of interest after the last of them.
    """

    def __init__(
        self,
        origin: Callable[[], Tensor],
        settings: SGDSettings,
        weight_decay: float,
        steps: int,
        final: bool = False,
    ) -> None:
        self._take, self._decay = origin, weight_decay
        self._rate = settings.learning_rate
        self._sgd: SlicedOptimiser | None = None
        self._only: Tensor | None = None  # gradient of the only step
        if steps > 1 or final:
            self._change = torch.zeros_like(self.values)
            self._sgd = SlicedOptimiser(self._change, [slice(None)], settings)

    @cached_property
    def values(self) -> Tensor:
        """``[N]``, after the steps so far; the server's where only one will follow, unless ``final``."""
        return self._origin

    @cached_property
    def _origin(self) -> Tensor:
        return self._take()

    def step(self, gradient: Tensor) -> None:
        """One step along ``gradient [N]``, which is used up."""
        if self._decay:
            gradient = gradient.add_(self.values, alpha=self._decay)
        if self._sgd is None:
            self._only = gradient
        else:
            self._sgd.step(0, gradient)
            self.values = self._origin + self._change

    def change(self) -> Tensor:
        """What all steps have added to the vector, ``[N]``. Call it once, at the end."""
        if self._only is not None:  # torch's step, whose momentum begins with the second
            return self._only.mul_(-self._rate)
        return self._change
