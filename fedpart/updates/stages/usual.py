"""Usual norms: how long clients' uploads have been lately, the bounds that follow, and an alarm."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedpart.updates.bounds import FREE, PSI, UNIT, Bound, Bounds, Norms, known, usual
from fedpart.updates.round import Round
from fedpart.updates.stages.base import Run, Stage
from fedpart.updates.update import Update

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
