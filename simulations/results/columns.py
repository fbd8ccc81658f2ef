"""Columns: numbers of summaries by where they stand, as texts of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simulations.results.estimate import Estimate
from simulations.results.words import DASH

# by the unit at a heading's end: what a number of the summary is multiplied by, and digits behind the point
_UNITS = {
    "[%]": (100.0, 1),
    "[GB]": (1e-9, 2),
    "[MB]": (1e-6, 1),
    "[M]": (1e-6, 2),
    "[k]": (1e-3, 1),
    "[deg]": (1.0, 0),
}


def text_of(heading: str, path: str, summaries: Sequence[Mapping[str, Any]]) -> str:
    """Mean and standard error over runs; a list's are separated by strokes.

    Args:
        heading: its unit at the end decides factor and digits: ``test [%]``, ``upload [GB]``.
        path: see :func:`values_at`.
        summaries: of a row's finished runs.

    Returns:
        ``97.0 ± 0.1``, ``97.0`` of one run, or a dash where a run does not have it.
    """
    factor, digits = _UNITS.get(heading[heading.rfind("[") :], (1.0, 3))
    texts = [_text(estimate, factor, digits) for estimate in estimates_at(path, summaries)]
    return " / ".join(texts) or DASH


def estimates_at(path: str, summaries: Sequence[Mapping[str, Any]]) -> list[Estimate | None]:
    """An estimate for each number at a place in summaries, see :func:`values_at`; none if some have more."""
    found = [values_at(path, summary) for summary in summaries]
    if len({len(values) for values in found}) > 1:
        return []
    return [Estimate.of(values) for values in zip(*found, strict=True)]


def values_at(path: str, summary: Any) -> list[float | None]:
    """The numbers at a place in a summary.

    Args:
        path: keys, separated by points, which keys may have too; of a list of mappings those of each.
        summary: what is searched.

    Returns:
        One number, as many as a list has, or ``[None]`` where there is none.
    """
    if isinstance(summary, list):
        return [value for one in summary for value in values_at(path, one)]
    if not path:
        known = isinstance(summary, int | float) and not isinstance(summary, bool) and math.isfinite(summary)
        return [float(summary) if known else None]
    if not isinstance(summary, Mapping):
        return [None]
    keys = [key for key in summary if path == key or path.startswith(f"{key}.")]
    found = (values_at(path[len(key) + 1 :], summary[key]) for key in sorted(keys, key=len, reverse=True))
    return next((values for values in found if values != [None]), [None])


def _text(estimate: Estimate | None, factor: float, digits: int) -> str:
    if estimate is None:
        return DASH
    if not estimate.error:  # one run; or counts, for instance
        return f"{factor * estimate.mean:,.{digits}f}"
    return estimate.text(factor, digits)
