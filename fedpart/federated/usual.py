"""Usual norms: how long clients' uploads have been lately, the bounds that follow, and an alarm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedpart.federated.protocol import Protocol
from fedpart.federated.safeguards import RECENT
from fedpart.updates.clipping import PSI, Bounds, Norms, known, scale, usual
from fedpart.updates.update import Update

ALARM = 30.0  # times the usual norm, beyond which a chunk's psi gradients are told; honest ones reach 27
NEEDED = 5  # norms without which there is no alarm, for the first few say little of each other


class UsualNorms:
    """The norms that uploads had in the last rounds, as the server has measured them before it clipped.

    Of each part, psi's gradient and the cells, the norms of the fewest last rounds are kept that have
    ``recent`` of them together. The usual norm is their lower median, which clients move no further than
    honest ones lie as long as fewer than half of the norms are not theirs. Of a single norm nobody can say
    whether it is usual, and those that are 0 are no norms here.

    A bound is ``multiple`` times that. A part whose usual norm is not known gets the bound 0: all of its
    updates are brought to the length 1, and their sum is then multiplied by the usual norm of all that have
    come so far, or by 0 if that is one. So no round waits, and updates are summed as they come. A defence has
    them all at once, and bounds what it makes of them itself.

    Args:
        protocol: of the run.

    Attributes:
        clipped: clients of the last round with an update that was longer than its bound; None: bounds do not
            follow the clients.
        alarms: of the last round, each ``{"chunk": k, "times": r}``: the psi gradients of this chunk's
            clients, whose norms' mean was more than :data:`ALARM` times the usual norm.
    """

    def __init__(self, protocol: Protocol) -> None:
        clip = protocol.settings.clip
        self._clip = clip if clip is not None and clip.multiple is not None else None
        self._recent = RECENT if clip is None else clip.recent
        self._protocol = protocol
        parts = range(len(protocol.bounds)) if self._clip is not None else [PSI]
        self._norms: dict[int, list[list[float]]] = {part: [] for part in parts}
        self.clipped: list[int] | None = None
        self.alarms: list[dict[str, Any]] = []

    def bounds(self) -> Bounds | None:
        """To what the next round's updates are clipped; None: to what the settings say.

        Methods whose clients send scores in the place of psi's gradient have no bound for these.
        """
        if self._clip is None or self._clip.multiple is None:
            return None
        free = {PSI} if self._protocol.method.held_out else set()
        times = self._clip.multiple
        return [math.inf if part in free else times * self._usual(part) for part in self._norms]

    def few(self) -> dict[int, list[float]]:
        """By part the norms that have come while the usual one is not known: none, or one."""
        return {part: _flat(rounds) for part, rounds in self._norms.items() if not self._usual(part)}

    def take(self, norms: Mapping[int, Norms], total: Update | None) -> None:
        """Note the norms of a round's clients, and give what had no bound in their sum its length, in place.

        Args:
            norms: by client; in the order of the sum.
            total: of the round; None: there is none.
        """
        bounds, read, defended = self.bounds(), known(norms), self._protocol.settings.defended
        for part, rounds in self._norms.items():
            now = [found[part] for found in read.values() if found.get(part)]
            rounds += [now] if now else []
            while sum(map(len, rounds[1:])) >= self._recent:
                del rounds[0]
            if bounds is not None and bounds[part] == 0 and total is not None and not defended:
                scale(total, part, self._usual(part))
        if bounds is not None:
            longer = {one for one, found in read.items() if any(n > bounds[p] > 0 for p, n in found.items())}
            self.clipped = sorted(longer)
        self.alarms = [] if self._protocol.method.held_out else list(self._alarms(read))

    def _alarms(self, norms: Mapping[int, Mapping[int, float]]) -> Iterable[dict[str, Any]]:
        usual = self._usual(PSI)
        if not usual or len(_flat(self._norms[PSI])) < NEEDED:
            return
        for chunk in range(1, len(self._protocol.chunks) + 1):
            own = [n[PSI] for one, n in norms.items() if PSI in n and self._protocol.chunk(one) == chunk]
            if own and (times := sum(own) / len(own) / usual) > ALARM:
                yield {"chunk": chunk, "times": times}

    def _usual(self, part: int) -> float:
        return usual(_flat(self._norms[part]))

    def state_dict(self) -> dict[int, list[list[float]]]:
        """By part the norms, round by round; empty: none has come."""
        return self._norms if any(self._norms.values()) else {}

    def load_state_dict(self, state: Mapping[int, list[list[float]]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._norms = {part: [[*norms] for norms in state.get(part, [])] for part in self._norms}


def _flat(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The norms of all rounds."""
    return [norm for norms in rounds for norm in norms]
