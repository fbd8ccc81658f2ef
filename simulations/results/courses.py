"""Courses: whether each hyperparameter has settled, still moves, or has not moved, by its values over a run.

Lines in which psi is as it was in the line before do not count: nothing has stepped it. The last fifth of
the values is cut into five blocks. A line is fitted to the blocks' means by least squares. There is a drift
where its slope is more than 3.18 of its standard errors away from 0, a t-test with three degrees of freedom
at the level of 5%, and where it amounts to a twentieth or more of the way from the start, and of the last
values' reach. A drift is ruled out where all slopes within 3.18 standard errors amount to at most half of the
way from the start."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.results.psi_parts import PsiParts, Quantity

BLOCKS, CRITICAL = 5, 3.18  # of Student's t: two-sided, 5%, BLOCKS - 2 degrees of freedom
SMALL = 0.05  # a change that is none, of where it began; a drift that is none, of way and reach
LAST = 5  # the last one of so many equal parts is looked at, where it has BLOCKS values
MOST = 0.5  # of the way from the start: what a drift must be ruled out to amount to
STATES = (  # a range has the first that one of its ends has
    "moving", "swinging", "unclear", "moved", "held", "settled", "not moved", "length", "fixed",
)  # fmt: skip


def courses(
    lines: Sequence[Mapping[str, Any]], start: Mapping[str, float | None]
) -> dict[str, dict[str, Any]]:
    """Of each of psi's numbers in physical units: its ``state``; ``mean``, ``low``, ``high`` and ``last`` of
    its last values: the last fifth, or the last one where a fifth has fewer than five.

    ``state`` is ``fixed``: all values are the start; ``not moved``: within 5% of it (of a range, of its
    half-width); ``held``: elsewhere, and stands still while others move: at a bound of what it can mean, or
    without a gradient; ``moving``: there is a drift; ``swinging``: there is none, and the last values are
    further apart than their mean is from the ``start``; ``settled``: a drift is ruled out; ``unclear``: it is
    not; or ``moved``, where a run is too short to say. ``length``: the norm of weights, which says little of
    the weights.
    """
    every: list[Mapping[str, float | None]] = [line["psi"]["physical"] for line in lines]
    physical = [row for before, row in pairwise([start, *every]) if row != before] or every[:1]
    if not physical or any(value is None for row in (start, *physical) for value in row.values()):
        return {}
    names = [name for name in start if name in physical[-1]]
    values = {name: np.array([start[name], *(row[name] for row in physical)], dtype=float) for name in names}
    parts, units = PsiParts.of(names), {name: abs(curve[0]) for name, curve in values.items()}
    for low, high in (*parts.angles, *parts.ranges):
        units |= dict.fromkeys((low, high), abs(values[high][0] - values[low][0]) / 2)
    told = {name: _course(curve, units[name]) for name, curve in values.items()}
    for together in (*parts.angles, *parts.ranges, parts.keeps):
        state = min((told[name]["state"] for name in together), key=STATES.index, default="")
        for name in together:
            told[name]["state"] = state
    for name in (name for name in names if Quantity.parse(name).kind == "norm"):
        told[name]["state"] = "fixed" if told[name]["state"] == "fixed" else "length"
    return told


def _course(values: NDArray[np.float64], unit: float) -> dict[str, Any]:
    """Of the values ``[1 + n]`` of one number, the start first; ``unit``: what a change is measured by."""
    start, after = values[0], values[1:]
    last = after[-(len(after) // LAST) :] if len(after) >= LAST * BLOCKS else after[-1:]
    way, spread, most = abs(last.mean() - start), np.ptp(last), np.abs(after - start).max()
    if most <= SMALL * unit:
        state = "not moved" if most else "fixed"
    elif len(after) > 1 and after[-1] == after[-2]:
        state = "held"
    elif len(last) < BLOCKS:
        state = "moved"
    else:
        drift, error = trend(last)
        if abs(drift) > error and abs(drift) >= SMALL * max(way, spread):
            state = "moving"
        elif spread > way:
            state = "swinging"
        else:
            state = "settled" if abs(drift) + error <= MOST * way else "unclear"
    numbers = {"mean": last.mean(), "low": last.min(), "high": last.max(), "last": last[-1]}
    return {"state": state, **{name: float(number) for name, number in numbers.items()}}


def trend(values: NDArray[np.float64]) -> tuple[float, float]:
    """By how much values ``[n >= 5]`` drift in all, and how far off that may be: see above."""
    means = np.array([block.mean() for block in np.array_split(values, BLOCKS)])
    (slope, _), errors = np.polyfit(np.arange(BLOCKS), means, 1, cov=True)
    return BLOCKS * float(slope), BLOCKS * CRITICAL * math.sqrt(errors[0, 0])
