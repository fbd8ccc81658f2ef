"""Bands: a mean as a line with its error as a shade, and what stands for many lines at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from simulations.pictures.figures import DASHES
from simulations.results.curves import Band
from simulations.results.psi_parts import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MANY = len(DASHES)  # more components of one kind of psi cannot be told apart
MIDDLE = "10th to 90th percentile"


def draw_band(ax: Axes, band: Band, colour: str, **style: Any) -> None:
    """The mean as a line, the standard error as a shade around it."""
    ax.plot(band.x, band.mean, color=colour, **{"lw": 2, **style})
    if band.error is not None:
        low, high = band.mean - band.error, band.mean + band.error
        ax.fill_between(band.x, low, high, color=colour, alpha=0.16, lw=0)


def draw_many(ax: Axes, group: Group, bands: Mapping[str, Band], colour: str) -> None:
    """Too many components for a line each: their median, and where the middle 80% lie."""
    shown = [bands[name] for name in group.names if name in bands]
    if shown:
        low, middle, high = np.percentile(np.stack([band.mean for band in shown]), [10, 50, 90], axis=0)
        ax.plot(shown[0].x, middle, color=colour, lw=2, label=f"median of {len(shown)}")
        ax.fill_between(shown[0].x, low, high, color=colour, alpha=0.2, lw=0, label=MIDDLE)


def zoom(ax: Axes, bands: Iterable[Band]) -> None:
    """Fit the y axis to bands without the first tenth of their points, which lie far from the rest."""
    late = []
    for band in bands:
        error = 0.0 if band.error is None else band.error
        late += [(band.mean + side * error)[len(band.x) // 10 :] for side in (-1, 1)]
    values = np.concatenate(late)
    low, high = values.min(), values.max()
    if low < high:
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
