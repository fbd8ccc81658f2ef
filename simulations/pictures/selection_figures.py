"""The picture of a selection: evidence, accuracy and log-likelihood against the value (Figure 2a)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulations.config.load import EVIDENCE_NAMES
from simulations.pictures.colours import COLOURS, GREY
from simulations.pictures.figures import (
    canvas,
    draw_band,
    drawn,
    dress,
    legend_above,
    marks,
    over_seeds,
    save_png,
    wrapped,
)
from simulations.results.curves import Band
from simulations.results.selection import Column, Selection, ValueScores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Panels: what is drawn, with its label and the factor to the unit.
_PANELS = (
    (("lml",), "{evidence} [nats]", 1.0),
    (("train_accuracy", "test_accuracy"), "accuracy [%]", 100.0),
    (("train_log_likelihood", "test_log_likelihood"), "log-likelihood\n[nats per example]", 1.0),
)
_TITLES = {
    "partitioned": "Partitioned networks",
    "separate": "Separate networks",
    "laplace": "Plain networks",
}
_DECADES = 30.0  # largest over smallest value from which an axis is logarithmic
_LONGEST, _LINE = 24, 45  # characters of a value in a line; of all values that fit side by side


@drawn
def plot_selection(selection: Selection, out: Path) -> list[Path]:
    """Draw ``select.png`` into ``out``, if there is anything to draw."""
    if not any(row.lml is not None for column in selection.columns for row in column.rows):
        return []
    return save_png({"select": selection_figure(selection)}, out)


def selection_figure(selection: Selection, *, page: bool = False) -> Figure:
    """A column of panels per way of scoring: means over seeds, with the standard error as a shade.

    A ``page`` (see :func:`.canvas`) has room for one way.
    """
    seeds = max(len(row.seeds) for column in selection.columns for row in column.rows)
    columns = len(selection.columns)
    figure, axes = canvas(f"Model selection, {over_seeds(seeds)}", len(_PANELS) * columns, columns, page=page)
    for place, column in enumerate(selection.columns):
        rows = [row for row in column.rows if row.lml is not None]
        if not rows:
            continue
        numbers = all(isinstance(row.value, int | float) and not isinstance(row.value, bool) for row in rows)
        if numbers:
            rows.sort(key=lambda row: row.value)
        # numbers stand where they are on the x axis, other values side by side
        x = np.array([row.value for row in rows] if numbers else range(len(rows)), dtype=float)
        for line, (names, label, factor) in enumerate(_PANELS):
            ax = axes[line * columns + place]
            last = line == len(_PANELS) - 1
            title = _TITLES.get(column.name, column.name) if line == 0 and not page else ""
            label = label.format(evidence=EVIDENCE_NAMES[column.evidence])
            dress(ax, label, selection.key if last else "", title)
            _draw(ax, column, rows, x, names, factor)
            _ticks(ax, x, [_text(row.value) for row in rows], numbers)
    return figure


def _draw(
    ax: Axes, column: Column, rows: list[ValueScores], x: np.ndarray, names: tuple[str, ...], factor: float
) -> None:
    for i, name in enumerate(names):
        scores = [getattr(row, name) for row in rows]
        if any(score is None for score in scores):
            continue
        colour = COLOURS[2] if name == "lml" else COLOURS[1 - i]
        style = {"ls": "--"} if name.startswith("train") else {}
        label = name.partition("_")[0] if len(names) > 1 else None
        errors = [score.error for score in scores]
        error = None if None in errors else np.array(errors, dtype=float)
        band = Band(x, np.array([score.mean for score in scores]), error).scaled(1, factor)
        draw_band(ax, band, colour, label=label, **style, **marks(i, len(x)))
    best = x[[row.value for row in rows].index(column.best)]
    label = f"best: {_text(column.best)}" if names == ("lml",) else None
    ax.axvline(best, color=GREY, lw=1.2, ls=":", label=label)
    legend_above(ax)


def _text(value: Any) -> str:
    return wrapped(str(value), _LONGEST)


def _ticks(ax: Axes, x: np.ndarray, texts: list[str], numbers: bool) -> None:
    """A tick for each value, unless there are too many; numbers over decades on a logarithmic axis."""
    places = x
    if numbers and min(x) > 0 and max(x) > _DECADES * min(x):
        ax.set_xscale("log")
        ax.minorticks_off()
        places = np.log(x)
    room = np.ptp(places) / _LINE * max(map(len, texts))
    if numbers and len(x) > 1 and min(np.diff(np.sort(places))) < room:
        return
    ax.set_xticks(x, texts)
    if not numbers and len(texts) * max(map(len, texts)) > _LINE:
        ax.tick_params(axis="x", labelrotation=20)
        for text in ax.get_xticklabels():
            text.set_horizontalalignment("right")
