"""How a client trains: the settings of its steps."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from fedpart.training.optimisers import DecaySettings, SGDSettings
from fedpart.training.settings import documented, setting


@documented
@dataclass(frozen=True)
class LocalSettings(DecaySettings):
    """How a client trains: torch's SGD on its shard, from the server's values in every round.

    Learning rate, batch size and epochs are App. J.2's for MNIST: 5e-2, 64, 1."""

    learning_rate: float = setting(5e-2, "of local SGD", gt=0)
    batch_size: int = setting(64, "examples per local step", ge=1)
    epochs: int = setting(1, "passes over the shard per round", ge=1)
    momentum: float = setting(0.0, "of local SGD, anew in every round and for every partition", ge=0, lt=1)
    psi_batch: Literal["shard"] | int = setting(
        "shard",
        "examples behind a client's psi gradient: the whole shard (the paper's MNIST), or a number drawn at "
        "random (its CIFAR-10: one batch)",
    )

    cosine_rounds: int | None = setting(
        None, "rounds over which the learning rate falls to a hundredth, by a cosine; null: it stays", ge=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        size: Any = self.psi_batch
        if not (size == "shard" if isinstance(size, str) else type(size) is int and size >= 1):
            raise ValueError(f"psi_batch is 'shard' or a number of examples, got {self.psi_batch!r}.")

    @cached_property
    def sgd(self) -> SGDSettings:
        """The optimiser of a client's steps."""
        return SGDSettings(self.learning_rate, self.momentum)

    def at(self, round: int, factor: float = 1.0) -> "LocalSettings":
        """As they are in ``round`` (1..), at ``factor`` times the rate."""
        rate = factor * self.learning_rate
        if self.cosine_rounds is not None:
            done = min(1.0, (round - 1) / self.cosine_rounds)
            rate = (0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2) * rate
        return replace(self, learning_rate=rate, cosine_rounds=None)

    def length(self, examples: int) -> float:
        """Sum of the rates with which a client's gradients count in its change, the first ones with all their
        momentum: ``learning_rate |a|_1`` of Wang et al. 2020, Section 4.1; of a client of so many examples.
        """
        steps = self.epochs * -(-examples // self.batch_size)
        if not self.momentum:
            return self.learning_rate * steps
        lost = self.momentum * (1 - self.momentum**steps) / (1 - self.momentum)
        return self.learning_rate * (steps - lost) / (1 - self.momentum)
