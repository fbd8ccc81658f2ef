"""Clipping: the norms up to which what a client uploads counts, and by which they are bounded."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, ClassVar

from fedpart.partition.partition import Partition
from fedpart.training.settings import Settings, documented, setting
from fedpart.updates.bounds import FREE, Bound, Bounds, Norms, clip
from fedpart.updates.round import Round
from fedpart.updates.stages.base import Run, Stage
from fedpart.updates.update import Update

MULTIPLE = 4.0  # times the usual norm: one in 300 honest changes is longer, and one in 50 psi gradients


@documented
@dataclass(frozen=True)
class ClipSettings(Settings):
    """Largest L2 norms of what a client uploads; what is longer is scaled down.

    They are numbers, ``weights`` and ``psi``, or follow from what clients upload, with ``multiple``, or with
    ``quantile`` where that has to be private.

    Raises:
        ValueError: a norm that is not a positive number; or neither ``weights`` nor ``multiple``, or both; or
            ``multiple`` and ``quantile``.
    """

    short: ClassVar[Mapping[str, Mapping[str, Any]]] = {"adaptive": {"multiple": MULTIPLE}}
    weights: float | tuple[float, ...] | None = setting(
        None, "of each partition's change: one number for all, or one per partition; null: see multiple"
    )
    psi: float | None = setting(
        None, "of the psi gradient, nats per example and unit of psi; null: not clipped", gt=0
    )
    multiple: float | None = setting(
        None,
        "in place of weights and psi: norms are so many times the median of those that clients have uploaded "
        "lately, of each partition and of the psi gradient; null: they do not follow the clients",
        gt=0,
    )
    quantile: float | None = setting(
        None,
        "with privacy: weights and psi are the norms of the first round, and then each follows this quantile "
        "of the clients' norms, under noise; null: they stay",
        gt=0,
        lt=1,
    )

    def __post_init__(self) -> None:
        if not isinstance(self.weights, (int, float, NoneType)):
            object.__setattr__(self, "weights", tuple(self.weights))
        given = self.weights if isinstance(self.weights, tuple) else (self.weights,)
        fixed = self.weights is not None or self.psi is not None
        if (self.weights is not None or self.multiple is None) and not (
            given and all(norm is not None and 0 < norm < math.inf for norm in given)
        ):
            raise ValueError(f"Norms to clip to are positive numbers, got {self.weights}.")
        if self.multiple is not None and fixed:
            raise ValueError(
                "Norms to clip to are numbers or follow the clients; leave out multiple, or weights and psi."
            )
        if self.multiple is not None and self.quantile is not None:
            raise ValueError(
                "Norms follow a multiple of the usual or, with privacy, a quantile; leave one of them out."
            )
        super().__post_init__()

    @property
    def adaptive(self) -> bool:
        """Whether the norms follow from what clients upload; then the server alone clips."""
        return self.multiple is not None or self.quantile is not None

    def of_clients(self) -> dict[str, Any] | None:
        """What clients must know of them: the norms that are numbers; None: there are none."""
        return None if self.adaptive else {"weights": self.weights, "psi": self.psi}

    def norms(self, chunks: int) -> tuple[float, ...]:
        """The norm of each of C partitions; infinite where norms follow the clients.

        Raises:
            ValueError: it is given for another number of partitions.
        """
        if not isinstance(self.weights, tuple):
            return (math.inf if self.weights is None else self.weights,) * chunks
        if len(self.weights) != chunks:
            raise ValueError(
                f"clip.weights has {len(self.weights)} norms for {chunks} partitions; give one per "
                f"partition, or one number for all."
            )
        return self.weights

    def bounds(self, partition: Partition) -> Bounds:
        """The norm of psi's gradient, and of each cell: that of the partition which it is a part of.

        Raises:
            ValueError: see :meth:`norms`.
        """
        norms = self.norms(partition.chunks)
        cells = [norms[bisect_right(partition.bounds, start) - 1] for start in partition.cells[:-1]]
        return [FREE if norm == math.inf else Bound(norm) for norm in (self.psi or math.inf, *cells)]


class Clip(Stage):
    """Clients scale down what they send to norms of the settings, and the server does so again.

    Where norms follow the clients (:class:`.UsualNorms`, :class:`.Privacy`) the server alone does, to the
    round's bounds. A run has this stage in any case, for the norms of psi's gradients are always told.

    Attributes:
        bounds: of the settings; of norms that follow the clients, or without any, all are free.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        settings: ClipSettings | None = run.settings.clip
        fixed = settings is not None and not settings.adaptive
        self.bounds: Bounds = [FREE] * len(run.partition.cells)
        if settings is not None and fixed:
            self.bounds = settings.bounds(run.partition)

    def send(self, update: Update, client: int, round: Round) -> None:
        clip(update, self.bounds)

    def receive(self, update: Update, round: Round) -> Norms:
        return clip(update, self.bounds if round.bounds is None else round.bounds)
