"""Clipping: norms up to which uploads count, numbers or multiples of what is usual; and an alarm."""

import math
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from fedpart.checks import is_list, is_number
from fedpart.partition.partition import Partition
from fedpart.training.settings import Settings, documented, setting
from fedpart.trees import wide
from fedpart.updates.stages.base import Run, Stage
from fedpart.updates.update import FREE, PSI, UNIT, Bound, Bounds, Norms, Round, Update, clip, known, usual

MULTIPLE = 4.0  # times the usual norm: one in 300 honest changes is longer, and one in 50 psi gradients
ALARM = 30.0  # times the usual norm, beyond which a chunk's psi gradients are told; honest ones reach 27
RECENT = 20  # norms of which the usual one is the median: that of psi grows a hundredfold in 50 rounds
NEEDED = 5  # norms without which there is no alarm, for the first few say little of each other


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
        several: Any = self.weights
        if is_list(several):
            object.__setattr__(self, "weights", tuple(several))
        norms = self.weights if isinstance(self.weights, tuple) else (self.weights,)
        fixed = self.weights is not None or self.psi is not None
        if (self.weights is not None or self.multiple is None) and not (
            norms and all(is_number(norm) and 0 < norm < math.inf for norm in norms)
        ):
            raise ValueError(f"Norms to clip to are positive numbers, got {self.weights!r}.")
        if self.multiple is not None and fixed:
            remedy = "leave out multiple, or weights and psi"
            raise ValueError(f"Norms to clip to are numbers or follow the clients; {remedy}.")
        if self.multiple is not None and self.quantile is not None:
            remedy = "leave one of them out"
            raise ValueError(f"Norms follow a multiple of the usual or, with privacy, a quantile; {remedy}.")
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
            remedy = "give one per partition, or one number for all"
            raise ValueError(f"clip.weights has {len(self.weights)} norms for {chunks} partitions; {remedy}.")
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

    Where norms follow the clients (:class:`.UsualBounds`, :class:`.Privacy`) the server alone does, to the
    round's bounds.

    Attributes:
        bounds: of the settings; of norms that follow the clients all are free.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        settings: ClipSettings = run.settings.clip
        free = [FREE] * len(run.partition.cells)
        self.bounds: Bounds = free if settings.adaptive else settings.bounds(run.partition)

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        return settings.clip is not None

    def send(self, update: Update, client: int, round: Round) -> None:
        clip(update, self.bounds)

    def receive(self, update: Update, round: Round) -> Norms:
        return clip(update, self.bounds if round.bounds is None else round.bounds)


class UsualNorms(Stage):
    """The norms that psi's gradients had in the last rounds, before the server has clipped any; an alarm.

    Of each part (here psi alone) the norms of the fewest last rounds are kept that have :data:`RECENT` of
    them together. The usual norm is their lower median, which clients move no further than honest ones lie as
    long as fewer than half of the norms are not theirs. Of a single norm nobody can say whether it is usual,
    and those that are 0 are no norms here.

    Attributes:
        clipped: clients of the last round with an update that was longer than its bound; None: bounds do not
            follow the clients.
        alarms: of the last round, each ``{"chunk": k, "times": r}``: the psi gradients of this chunk's
            clients, whose norms' mean was more than :data:`ALARM` times the usual norm.
    """

    def __init__(self, run: Run, parts: Iterable[int] = (PSI,)) -> None:
        super().__init__(run)
        self._norms: dict[int, list[list[float]]] = {part: [] for part in parts}
        self.clipped: list[int] | None = None
        self.alarms: list[dict[str, Any]] = []

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        return not UsualBounds.wanted(settings)

    def receive(self, update: Update, round: Round) -> Norms:
        psi = update.psi
        return {} if psi is None else {PSI: torch.linalg.vector_norm(psi, dtype=wide(psi.device))}

    def total(self, total: Update | None, round: int, norms: Mapping[int, Norms]) -> Update | None:
        """Note the round's norms of psi's gradients, and warn of those that are of another size."""
        psi = {client: norms[PSI] for client, norms in known(norms).items() if PSI in norms}
        self._note(PSI, [norm for norm in psi.values() if norm])
        usual, self.alarms = self._usual(PSI), []
        if usual and max(psi.values(), default=0.0) > ALARM * usual:  # else no mean is
            self._alarm(round, psi, usual)
        return total

    def _alarm(self, round: int, psi: Mapping[int, float], usual: float) -> None:
        if self.run.method.held_out or len(_flat(self._norms[PSI])) < NEEDED:
            return
        for chunk in range(1, len(self.run.chunks) + 1):
            norms = [norm for client, norm in psi.items() if self.run.chunk(client) == chunk]
            if norms and (times := sum(norms) / len(norms) / usual) > ALARM:
                self.alarms.append({"chunk": chunk, "times": times})
                told = f"the psi gradients of chunk {chunk} are {times:.3g} times as long as is usual"
                warnings.warn(f"Round {round}: {told}; look at them.", RuntimeWarning, stacklevel=4)

    def _note(self, part: int, now: list[float]) -> None:
        rounds = self._norms[part]
        rounds += [now] if now else []
        while sum(map(len, rounds[1:])) >= RECENT:
            del rounds[0]

    def _usual(self, part: int) -> float:
        return usual(_flat(self._norms[part]))

    def report(self, round: int) -> dict[str, Any]:
        return {"clipped": self.clipped, "psi_alarms": self.alarms or None}

    def state_dict(self) -> dict[str, Any]:
        return {"norms": self._norms} if any(self._norms.values()) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        norms = state.get("norms", {})
        self._norms = {part: [[*norms_then] for norms_then in norms.get(part, [])] for part in self._norms}


class UsualBounds(UsualNorms):
    """Bounds that follow the clients: ``multiple`` times the usual norm of psi's gradient and of each cell.

    A part whose usual norm is not known gets ``UNIT``: all of its updates are brought to the length 1, and
    their sum is then multiplied by the usual norm of all that have come so far, or by 0 if that is one. So no
    round waits, and updates are summed as they come. A defence has them all at once, and bounds what it makes
    of them itself."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, range(len(run.partition.cells)))
        self._multiple: float = run.settings.clip.multiple

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        return settings.clip is not None and settings.clip.multiple is not None

    def start(self, round: Round) -> Round:
        """With the bounds to which the server clips."""
        return replace(round, bounds=self.bounds(), norms=self.few())

    def bounds(self) -> Bounds:
        """To what the next round's updates are clipped.

        Methods whose clients send scores in the place of psi's gradient have no bound for these."""
        free = {PSI} if self.run.method.held_out else set()
        lengths = {part: self._multiple * self._usual(part) for part in self._norms}
        return [FREE if part in free else Bound(norm) if norm else UNIT for part, norm in lengths.items()]

    def few(self) -> dict[int, list[float]]:
        """By part the norms that have come while the usual one is not known: none, or one."""
        return {part: _flat(rounds) for part, rounds in self._norms.items() if not self._usual(part)}

    def total(self, total: Update | None, round: int, norms: Mapping[int, Norms]) -> Update | None:
        """Note the round's norms, and give what had no bound in the sum its length, in place."""
        bounds, read, defended = self.bounds(), known(norms), self.run.settings.defence is not None
        super().total(total, round, read)
        for part in self._norms:
            if part != PSI:
                self._note(part, [of_client[part] for of_client in read.values() if of_client.get(part)])
            if bounds[part].unit and total is not None and part in total.parts and not defended:
                total.parts[part].mul_(self._usual(part))  # the weight by which its mean divides stays
        most = {part: bound.norm for part, bound in enumerate(bounds) if bound.norm and not bound.unit}
        longer = (
            client for client, n in read.items() if any(n[part] > most.get(part, math.inf) for part in n)
        )
        self.clipped = sorted(longer)
        return total


def _flat(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The norms of all rounds."""
    return [norm for norms in rounds for norm in norms]
