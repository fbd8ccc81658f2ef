"""Clipping: norms up to which uploads count, numbers or multiples of what is usual; and an alarm."""

import math
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, ClassVar

from fedpart.partition.partition import Partition
from fedpart.training.settings import Settings, documented, setting
from fedpart.updates.round import Round
from fedpart.updates.stages.base import Run, Stage
from fedpart.updates.update import FREE, PSI, UNIT, Bound, Bounds, Norms, Update, clip, known, usual

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


ALARM = 30.0  # times the usual norm, beyond which a chunk's psi gradients are told; honest ones reach 27
RECENT = 20  # norms of which the usual one is the median: that of psi grows a hundredfold in 50 rounds
NEEDED = 5  # norms without which there is no alarm, for the first few say little of each other


class UsualNorms(Stage):
    """The norms that uploads had in the last rounds, as the server has measured them before it clipped.

    Of each part, psi's gradient and the cells, the norms of the fewest last rounds are kept that have
    :data:`RECENT` of them together. The usual norm is their lower median, which clients move no further than
    honest ones lie as long as fewer than half of the norms are not theirs. Of a single norm nobody can say
    whether it is usual, and those that are 0 are no norms here.

    A bound is ``multiple`` times that. A part whose usual norm is not known gets ``UNIT``: all of its
    updates are brought to the length 1, and their sum is then multiplied by the usual norm of all that have
    come so far, or by 0 if that is one. So no round waits, and updates are summed as they come. A defence has
    them all at once, and bounds what it makes of them itself.

    Attributes:
        clipped: clients of the last round with an update that was longer than its bound; None: bounds do not
            follow the clients.
        alarms: of the last round, each ``{"chunk": k, "times": r}``: the psi gradients of this chunk's
            clients, whose norms' mean was more than :data:`ALARM` times the usual norm.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._multiple: float | None = None if run.settings.clip is None else run.settings.clip.multiple
        parts = range(len(run.partition.cells)) if self._multiple is not None else [PSI]
        self._norms: dict[int, list[list[float]]] = {part: [] for part in parts}
        self.clipped: list[int] | None = None
        self.alarms: list[dict[str, Any]] = []

    def start(self, round: Round) -> Round:
        """With the bounds to which the server clips, where they follow the clients."""
        bounds = self.bounds()
        return round if bounds is None else replace(round, bounds=bounds, norms=self.few())

    def bounds(self) -> Bounds | None:
        """To what the next round's updates are clipped; None: to what the settings say.

        Methods whose clients send scores in the place of psi's gradient have no bound for these.
        """
        if self._multiple is None:
            return None
        free = {PSI} if self.run.method.held_out else set()
        lengths = {part: self._multiple * self._usual(part) for part in self._norms}
        return [FREE if part in free else Bound(norm) if norm else UNIT for part, norm in lengths.items()]

    def few(self) -> dict[int, list[float]]:
        """By part the norms that have come while the usual one is not known: none, or one."""
        return {part: _flat(rounds) for part, rounds in self._norms.items() if not self._usual(part)}

    def total(self, total: Update | None, round: int, norms: Mapping[int, Norms]) -> Update | None:
        """Note the round's norms, and give what had no bound in the sum its length, in place."""
        bounds, read, defended = self.bounds(), known(norms), self.run.settings.defended
        for part, rounds in self._norms.items():
            now = [own[part] for own in read.values() if own.get(part)]
            rounds += [now] if now else []
            while sum(map(len, rounds[1:])) >= RECENT:
                del rounds[0]
            if bounds is not None and bounds[part].unit and total is not None and not defended:
                tensor = total.psi if part == PSI else total.deltas.get(part)
                if tensor is not None:  # the weight by which its mean divides stays
                    tensor.mul_(self._usual(part))
        if bounds is not None:
            longer = (c for c, own in read.items() if any(_longer(bounds[p], n) for p, n in own.items()))
            self.clipped = sorted(longer)
        self.alarms = [] if self.run.method.held_out else list(self._alarms(read))
        for alarm in self.alarms:
            warnings.warn(
                f"Round {round}: the psi gradients of chunk {alarm['chunk']} are {alarm['times']:.3g} times "
                f"as long as is usual; look at them.",
                RuntimeWarning,
                stacklevel=3,
            )
        return total

    def _alarms(self, norms: Mapping[int, Mapping[int, float]]) -> Iterable[dict[str, Any]]:
        usual = self._usual(PSI)
        if not usual or len(_flat(self._norms[PSI])) < NEEDED:
            return
        for chunk in range(1, len(self.run.chunks) + 1):
            own = [n[PSI] for one, n in norms.items() if PSI in n and self.run.chunk(one) == chunk]
            if own and (times := sum(own) / len(own) / usual) > ALARM:
                yield {"chunk": chunk, "times": times}

    def _usual(self, part: int) -> float:
        return usual(_flat(self._norms[part]))

    def report(self, round: int) -> dict[str, Any]:
        return {"clipped": self.clipped, "psi_alarms": self.alarms or None}

    def state_dict(self) -> dict[str, Any]:
        return {"norms": self._norms} if any(self._norms.values()) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        norms = state.get("norms", {})
        self._norms = {part: [[*one] for one in norms.get(part, [])] for part in self._norms}


def _longer(bound: Bound, norm: float) -> bool:
    return bound.norm is not None and not bound.unit and norm > bound.norm


def _flat(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The norms of all rounds."""
    return [norm for norms in rounds for norm in norms]
