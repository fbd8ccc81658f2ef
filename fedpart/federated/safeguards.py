"""Settings that bound what one client can do to a run, and what a run tells about one client."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from fedpart.parameters.partition import Partition
from fedpart.training.settings import Settings, documented, setting

LARGEST_COUNT = 10**9  # examples; weighted by that many, the largest values that are taken are still finite


@documented
@dataclass(frozen=True)
class ClipSettings(Settings):
    """Largest L2 norms of what a client uploads; what is longer is scaled down.

    Raises:
        ValueError: a norm that is not a positive number.
    """

    weights: float | tuple[float, ...] = setting(
        description="of each partition's change: one number for all, or one per partition"
    )
    psi: float | None = setting(
        None, "of the psi gradient, nats per example and unit of psi; null: not clipped", gt=0
    )

    def __post_init__(self) -> None:
        if not isinstance(self.weights, (int, float)):
            object.__setattr__(self, "weights", tuple(self.weights))
        given = self.weights if isinstance(self.weights, tuple) else (self.weights,)
        if not given or not all(0 < norm < math.inf for norm in given):
            raise ValueError(f"Norms to clip to are positive numbers, got {self.weights}.")
        super().__post_init__()

    def norms(self, chunks: int) -> tuple[float, ...]:
        """The norm of each of C partitions.

        Raises:
            ValueError: it is given for another number of partitions.
        """
        if not isinstance(self.weights, tuple):
            return (self.weights,) * chunks
        if len(self.weights) != chunks:
            raise ValueError(
                f"clip.weights has {len(self.weights)} norms for {chunks} partitions; give one per "
                f"partition, or one number for all."
            )
        return self.weights

    def of_cells(self, partition: Partition) -> list[float]:
        """The norm of each cell: that of the partition which it is a part of.

        Raises:
            ValueError: see :meth:`norms`.
        """
        norms = self.norms(partition.chunks)
        return [norms[bisect_right(partition.bounds, start) - 1] for start in partition.cells[:-1]]


@documented
@dataclass(frozen=True)
class PrivacySettings(Settings):
    """Differential privacy of clients, by Gaussian noise on clipped sums; see ``docs/guides/privacy.md``."""

    noise_multiplier: float = setting(
        description="z, the noise's standard deviation over the sensitivity of all that a client uploads",
        gt=0,
    )
    delta: float = setting(1e-5, "at which epsilon is reported", gt=0, lt=1)
    randomness: Literal["system", "seed"] = setting(
        "system",
        "of noise and cohorts: the operating system's, or the seed's, which clients know and can undo: for "
        "simulations that can be repeated",
    )
