"""Best: the weights of the round with the best L_ML, and a sentence where L_ML falls for long."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from torch import Tensor

from fedpart.training.state import ModelState
from fedpart.updates.stages.base import Stage
from fedpart.updates.update import Update

WINDOW = 10  # rounds with an L_ML whose mean is compared


class Best(Stage):
    """Keeps w and psi of the round whose L_ML, the mean of :data:`WINDOW` rounds up to it, is the largest.

    A round's L_ML is of the values that it starts from, so these are kept. What the last round steps to has
    none, and is not among them.

    Attributes:
        round: that has started from what is kept; None: there were fewer rounds with an L_ML.
        lml: that mean, nats per example.
        kept: w and psi, on the CPU.
    """

    def __init__(self, state: ModelState) -> None:
        self.round: int | None = None
        self.lml, self.kept = -math.inf, list[Tensor]()
        self._values, self._recent = (state.w, state.psi), list[float]()

    def accept(self, total: Update, round: int, clients: Sequence[int]) -> None:
        if total.lml is None:
            return
        self._recent = [*self._recent, total.lml][-WINDOW:]
        if len(self._recent) == WINDOW and fmean(self._recent) > self.lml:
            self.round, self.lml = round, fmean(self._recent)
            self.kept = [values.cpu().clone() for values in self._values]

    def state_dict(self) -> dict[str, Any]:
        return {"best": (self.round, self.lml, list(self.kept), list(self._recent))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.round, self.lml, self.kept, self._recent = state["best"]


def fallen(lmls: Iterable[tuple[int, float | None]], kept: bool = False) -> str:
    """A sentence where L_ML falls for long; else empty.

    Its mean over the last :data:`WINDOW` rounds is then below the best such mean by more than three standard
    errors of their difference, and the best is at least a fifth of the rounds, and two windows, ago.

    Args:
        lmls: rounds, ascending, and the L_ML of each, nats per example; None: it has none.
        kept: whether ``keep_best`` is set, or cannot be.
    """
    known = [(number, lml) for number, lml in lmls if lml is not None]
    windows = [[lml for _, lml in known[end - WINDOW : end]] for end in range(WINDOW, len(known) + 1)]
    best = max(range(len(windows)), key=lambda place: fmean(windows[place]), default=0)
    ago = len(windows) - 1 - best
    if ago < max(2 * WINDOW, len(known) / 5):
        return ""
    high, low = fmean(windows[best]), fmean(windows[-1])
    if not high - low > 3 * math.hypot(stdev(windows[best]), stdev(windows[-1])) / math.sqrt(WINDOW):
        return ""
    since, way = known[best + WINDOW - 1][0], "" if kept else ": stop there, or set keep_best to lml"
    course = f"from {high:.3f} to {low:.3f} nats per example (means of {WINDOW} rounds)"
    return f"L_ML has fallen since round {since}, {course}{way}."
