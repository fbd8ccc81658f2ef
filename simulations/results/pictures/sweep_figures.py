"""Pictures of what many runs have found: a selection, a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedpart.checks import is_number
from simulations.results.curves import Band
from simulations.results.pictures import figures as fig
from simulations.results.scores import SCORES
from simulations.results.search import Found
from simulations.results.selection import SHOWN, Column, Selection, ValueScores

_PANELS = (SHOWN[:1], SHOWN[1:3], SHOWN[3:])  # evidence, accuracies, log-likelihoods
_TITLES = {name: f"{name.capitalize()} networks" for name in ("partitioned", "separate")}
_TITLES["laplace"] = "Plain networks"
_DECADES = 30.0  # largest over smallest value from which an axis is logarithmic
_LONGEST, _LINE = 24, 45  # characters of a value in a line; of all values that fit side by side
_ACCURACY = SCORES["accuracy"]


@fig.drawn
def plot_selection(selection: Selection, out: Path) -> list[Path]:
    """Draw ``select.png`` into ``out``, if there is anything to draw."""
    return fig.save_png({"select": selection_figure(selection)} if selection.known else {}, out)


def selection_figure(selection: Selection, *, page: bool = False) -> fig.Figure:
    """A column of panels per way of scoring: means over seeds, the standard error as a shade (Figure 2a)."""
    seeds = max(len(row.seeds) for column in selection.columns for row in column.rows)
    columns, title = len(selection.columns), f"Model selection, {fig.over_seeds(seeds)}"
    figure, axes = fig.canvas(title, len(_PANELS) * columns, columns, page=page)
    for place, column in enumerate(selection.columns):
        rows = [row for row in column.rows if row.lml is not None]
        if not rows:
            continue
        if numbers := all(is_number(row.value) for row in rows):
            rows.sort(key=lambda row: row.value)
        # numbers stand where they are on the x axis, other values side by side
        x = np.array([row.value for row in rows] if numbers else range(len(rows)), dtype=float)
        title = "" if page else _TITLES.get(column.name, column.name)
        for line, (ax, names) in enumerate(zip(axes[place::columns], _PANELS, strict=True)):
            key = selection.key if names is _PANELS[-1] else ""
            fig.dress(ax, column.score(names[0]).axis, key, "" if line else title)
            _draw(ax, column, rows, x, names)
            _ticks(ax, x, [_text(row.value) for row in rows], numbers)
    return figure


def _draw(ax: fig.Axes, column: Column, rows: list[ValueScores], x: np.ndarray, names: list[str]) -> None:
    for i, name in enumerate(names):
        scores = [getattr(row, name) for row in rows]
        if None in scores:
            continue
        part, alone = name.partition("_")[0], len(names) == 1
        style = {"ls": "--"} if part == "train" else {}
        errors = [score.error for score in scores]
        error = None if None in errors else np.array(errors, dtype=float)
        band = Band(x, np.array([one.mean for one in scores]), error).scaled(1, column.score(name).factor)
        style |= {"label": None if alone else part, **fig.marks(i, len(x))}
        fig.draw_band(ax, band, fig.COLOURS[2 if alone else 1 - i], **style)
    best = x[[row.value for row in rows].index(column.best)]
    label = f"best: {_text(column.best)}" if len(names) == 1 else None
    ax.axvline(best, color=fig.GREY, lw=1.2, ls=":", label=label)
    fig.legend_above(ax)


def _text(value: Any) -> str:
    return fig.wrapped(str(value), _LONGEST)


def _ticks(ax: fig.Axes, x: np.ndarray, texts: list[str], numbers: bool) -> None:
    """A tick for each value, unless there are too many; numbers over decades on a logarithmic axis."""
    places = x
    if numbers and min(x) > 0 and max(x) > _DECADES * min(x):
        ax.set_xscale("log")
        ax.minorticks_off()
        places = np.log(x)
    widest = max(map(len, texts))
    if numbers and len(x) > 1 and min(np.diff(np.sort(places))) < np.ptp(places) / _LINE * widest:
        return
    ax.set_xticks(x, texts)
    if not numbers and len(texts) * widest > _LINE:
        ax.tick_params(axis="x", labelrotation=20)
        for text in ax.get_xticklabels():
            text.set_horizontalalignment("right")


@fig.drawn
def plot_search(out: Path, found: Found) -> list[Path]:
    """Draw ``spent.png`` into ``out``, if a trial was tested."""
    curve = spent_figure(found)
    return fig.save_png({} if curve is None else {"spent": curve}, out)


def spent_figure(found: Found, *, page: bool = False) -> fig.Figure | None:
    """Test accuracy of the run that is best by the objective so far, over what all have sent, or trained."""
    points = [
        (spent.bytes / 1e6 if found.federated else spent.rounds, _ACCURACY.factor * accuracy)
        for spent, best in found.curve
        if best is not None and (accuracy := best.summary.get("test_accuracy")) is not None
    ]
    if not points:
        return None
    figure, (ax,) = fig.canvas("What would be deployed", page=page)
    ax.step(*np.array(points).T, where="post", color=fig.COLOURS[0], marker=".")
    what = "bytes sent by all trials [MB]" if found.federated else "iterations of all trials"
    fig.dress(ax, f"test {_ACCURACY.axis}", what)
    return figure
