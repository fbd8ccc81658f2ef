"""Figures: how every picture looks. matplotlib's object API: no pyplot, nothing global, no window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simulations.config.load import EVIDENCE_NAMES
from simulations.results.curves import Band
from simulations.results.psi_parts import Group

if TYPE_CHECKING:  # matplotlib takes a second to import; only pictures need it
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008): colour-blind eyes tell them apart; markers and dashes do so in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = (
    "-",
    "--",
    "-.",
    ":",
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (1, 1)),
    (0, (8, 2)),
    (0, (3, 3)),
)
DPI = 125  # 8 inches across: 1000 pixels
EVIDENCE = EVIDENCE_NAMES | {"lml": r"$\mathcal{L}_{\mathrm{ML}}$"}  # on axes
MANY = len(DASHES)  # more components of one kind of psi cannot be told apart


def canvas(title: str, panels: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A titled figure and its axes, in reading order."""
    from matplotlib.figure import Figure

    rows = -(-panels // columns)
    size = (8 if columns == 1 else 10.5, 5.5 if rows == 1 else 3.6 * rows + 0.6)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    figure.suptitle(title, fontsize=15)
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for spare in axes[panels:]:
        spare.set_visible(False)
    figure.align_ylabels(axes[:panels])
    return figure, axes[:panels]


def dress(ax: Axes, y: str, x: str = "", title: str = "", limits: tuple[float, float] | None = None) -> None:
    """Labels, readable sizes, a faint grid; ``limits``: smallest and largest x, with room added."""
    from matplotlib.ticker import MaxNLocator

    ax.set_title(title, fontsize=13, loc="left")
    ax.set_xlabel(x, fontsize=13)
    ax.set_ylabel(y, fontsize=13)
    ax.tick_params(labelsize=11)
    ax.grid(alpha=0.3, lw=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    counts = x in ("", "round", "iteration") or x.startswith("clients")
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=counts, min_n_ticks=1, steps=[1, 2, 5, 10]))
    if limits is not None:
        low, high = limits
        room = 0.02 * (high - low) or 0.5
        ax.set_xlim(low - room, high + room)


def short(name: str, most: int = 14) -> str:
    """A name for which there is not much room, cut off after so many characters."""
    return name if len(name) <= most else name[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def draw_band(ax: Axes, band: Band, colour: str, **style: Any) -> None:
    """The mean as a line, the standard error as a shade around it."""
    ax.plot(band.x, band.mean, color=colour, **{"lw": 2, **style})
    if band.error is not None:
        low, high = band.mean - band.error, band.mean + band.error
        ax.fill_between(band.x, low, high, color=colour, alpha=0.16, lw=0)


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


def draw_many(ax: Axes, group: Group, bands: Mapping[str, Band], colour: str) -> None:
    """Too many components for a line each: their median, and where the middle 80% lie."""
    shown = [bands[name] for line in group.lines for name in line.names if name in bands]
    if not shown:
        return
    low, middle, high = np.percentile(np.stack([band.mean for band in shown]), [10, 50, 90], axis=0)
    ax.plot(shown[0].x, middle, color=colour, lw=2, label=f"median of {len(shown)}")
    ax.fill_between(shown[0].x, low, high, color=colour, alpha=0.2, lw=0, label="10th to 90th percentile")
    legend_above(ax, *ax.get_legend_handles_labels(), columns=2)


def draw_group(
    ax: Axes, group: Group, methods: Mapping[str, Mapping[str, Band]], colours: Mapping[str, str]
) -> None:
    """A kind of psi of several methods: a colour each, a dash for each of its components."""
    for method, bands in methods.items():
        if len(group.lines) > MANY:
            draw_many(ax, group, bands, colours[method])
            continue
        for line, dashes in zip(group.lines, DASHES, strict=False):
            for name in line.names:
                if name in bands:
                    draw_band(ax, bands[name], colours[method], ls=dashes)
    if 1 < len(group.lines) <= MANY:
        keys = [ax.plot([], [], color="0.5", ls=DASHES[i], lw=1.8)[0] for i in range(len(group.lines))]
        legend_above(ax, keys, [line.label for line in group.lines])


def legend_above(ax: Axes, handles: Sequence[Artist], labels: Sequence[str], columns: int = 4) -> None:
    """A legend on the title's line, right of it: never over the curves."""
    ax.legend(
        handles,
        labels,
        ncols=columns,
        loc="lower right",
        bbox_to_anchor=(1.0, 0.98),
        fontsize=11,
        frameon=False,
        handlelength=2.4,
        columnspacing=1.2,
        handletextpad=0.5,
        borderpad=0,
    )


def marks(i: int, points: int) -> dict[str, Any]:
    """Style of a line with about ten markers, the last point among them."""
    every = max(1, points // 10)
    place = ((points - 1) % every, every)
    return {"marker": MARKERS[i % len(MARKERS)], "markersize": 6, "markevery": place}
