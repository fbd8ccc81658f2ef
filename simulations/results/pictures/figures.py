"""Figures: colours and form of every picture, and the two ways to save one: PNG, and SVG for a page.

matplotlib's object API: no pyplot, nothing global, no window."""

from __future__ import annotations

import io
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from fedpart.extras import MissingExtra, need
from simulations.results.curves import Band
from simulations.results.psi_parts import Group

if TYPE_CHECKING:  # matplotlib takes a second to import; only pictures need it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# After Okabe and Ito (2008): colour-blind eyes tell them apart, markers and dashes do so in grey. Each has a
# contrast of 3:1 or more to the page and its cards (WCAG 2.2, 1.4.11), as those of DARK on a dark page.
COLOURS = ("#0072B2", "#C75100", "#00875F", "#B8569A", "#9A6B00", "#1789B8", "#000000", "#767676")
DARK = ("#4AA3DF", "#F08A3C", "#2BB88A", "#DE8FC0", "#E0B03A", "#7CCBEF", "#FFFFFF", "#9A9A9A")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
THEMES = {  # of the page: text, quiet text, lines, background, background of cards
    "light": {"ink": "#1e1f21", "soft": "#5c6066", "line": "#d9dce0", "page": "#ffffff", "card": "#f6f7f9"},
    "dark": {"ink": "#e6e7e9", "soft": "#a3a8af", "line": "#3a3d42", "page": "#17181a", "card": "#202225"},
}
GREY = "#808080"  # is 3:1 on both
_METHODS = ("fedavg", "augerino", "partitioned", "fedex", "fjord", "fedrolex", "heterofl")
DASHES: tuple[Any, ...] = (
    *("-", "--", "-.", ":"),
    *((0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)), (0, (3, 3))),
)
MANY = len(DASHES)  # more components of one kind of psi cannot be told apart
MIDDLE = "10th to 90th percentile"
DPI = 125  # 8 inches across: 1000 pixels
PAGE_WIDTH = 4.7  # inches: letters are still read where the page is a telephone
PREFIX = "chart-id-"  # of all ids in an SVG, for which the page puts one for each chart
LEGEND: dict[str, Any] = {
    "fontsize": 11, "frameon": False, "handlelength": 2.3, "columnspacing": 1.2, "handletextpad": 0.5,
}  # fmt: skip
P = ParamSpec("P")
Keys = tuple[Sequence[Any], Sequence[str]]  # what a legend shows: handles and their labels


def places(methods: Iterable[str]) -> dict[str, int]:
    """A place in :data:`COLOURS` for each method: fedpart's have their own, others take what is free."""
    wanted = list(methods)
    taken = {method: _METHODS.index(method) for method in wanted if method in _METHODS}
    free = [i for i in (7, *range(7)) if i not in taken.values()] or list(range(len(COLOURS)))
    for i, method in enumerate(sorted(set(wanted) - taken.keys())):
        taken[method] = free[i % len(free)]
    return {method: taken[method] for method in wanted}


@dataclass(frozen=True)
class Chart:
    """A figure on a page, or several of one thing of which a reader chooses one, with a note below."""

    title: str
    views: Mapping[str, str]  # elements, see :func:`svg`, by what the x axis has; one of "" needs no choice
    note: str = ""


def canvas(title: str, panels: int = 1, columns: int = 1, *, page: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, in reading order; one for a ``page`` has no title and one column."""
    from matplotlib.figure import Figure

    columns = 1 if page else columns
    rows = -(-panels // columns)
    narrow = (PAGE_WIDTH, 3.3 if rows == 1 else 2.7 * rows)
    size = (8 if columns == 1 else 10.5, 5.5 if rows == 1 else 3.6 * rows + 0.6)
    figure = Figure(figsize=narrow if page else size, dpi=DPI, layout="constrained")
    if not page:
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
    ax.set_xlabel(wrapped(x, 42), fontsize=13)
    ax.set_ylabel(wrapped(y if len(y) < 28 else y.replace(" [", "\n["), 28), fontsize=13)
    ax.tick_params(labelsize=11)
    ax.grid(alpha=0.3, lw=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    counts = x in ("", "round", "iteration") or x.startswith("clients")
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=counts, min_n_ticks=1, steps=[1, 2, 5, 10]))
    if limits is not None:
        low, high = limits
        room = 0.02 * (high - low) or 0.5
        ax.set_xlim(low - room, high + room)


def wrapped(name: str, most: int = 14) -> str:
    """A name for which there is not much room, in lines of so many characters; nothing is cut off."""
    return "\n".join(line for part in name.split("\n") for line in textwrap.wrap(part, most) or [""])


def over_seeds(seeds: int) -> str:
    """What a line and its shade are."""
    return f"mean \N{PLUS-MINUS SIGN} standard error over {seeds} seeds" if seeds > 1 else "one seed"


def marks(i: int, points: int) -> dict[str, Any]:
    """Style of a line with about ten markers, the last point among them."""
    every = max(1, points // 10)
    place = ((points - 1) % every, every)
    return {"marker": MARKERS[i % len(MARKERS)], "markersize": 6, "markevery": place}


def draw(ax: Axes, curve: tuple[Any, Any], i: int, factor: float = 1.0, **style: Any) -> None:
    """A curve ``x, y``, if it has a point, as a line in the i-th colour with markers."""
    x, y = curve
    if len(x):
        ax.plot(x, factor * y, **{"color": COLOURS[i], "lw": 2, **marks(i, len(x)), **style})


def draw_band(ax: Axes, band: Band, colour: str, step: str | None = None, **style: Any) -> None:
    """The mean as a line, the standard error as a shade around it; ``step``: as for ``fill_between``."""
    form = {} if step is None else {"drawstyle": f"steps-{step}"}
    ax.plot(band.x, band.mean, color=colour, **{"lw": 2, **form, **style})
    if band.edges:
        ax.fill_between(band.x, *band.edges, step=step, color=colour, alpha=0.16, lw=0)


def draw_many(ax: Axes, group: Group, bands: Mapping[str, Band], colour: str) -> None:
    """Too many components for a line each: their median, and where the middle 80% lie."""
    if shown := [bands[name] for name in group.names if name in bands]:
        low, middle, high = np.percentile(np.stack([band.mean for band in shown]), [10, 50, 90], axis=0)
        ax.plot(shown[0].x, middle, color=colour, lw=2, label=f"median of {len(shown)}")
        ax.fill_between(shown[0].x, low, high, color=colour, alpha=0.2, lw=0, label=MIDDLE)


def legend_above(ax: Axes, keys: Keys | None = None, columns: int = 4) -> None:
    """A legend on the title's line, right of it: never over the curves; of what is labelled, if not given."""
    handles, labels = keys or ax.get_legend_handles_labels()
    if not labels:
        return
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.98), "borderpad": 0}
    ax.legend(handles, labels, ncols=columns, **place, **LEGEND)


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend below all axes, in as many columns, up to three, as there is room for."""
    labels = [wrapped(label, int(figure.get_figwidth() / 0.095)) for label in labels]
    widest = 0.5 + 0.076 * max(map(len, labels), default=0)  # inches: a handle, and so much a letter
    columns = min(3, max(1, int(figure.get_figwidth() / widest)))
    figure.legend(handles, labels, ncols=columns, loc="outside lower center", **LEGEND)


def drawn(plot: Callable[P, list[Path]]) -> Callable[P, list[Path]]:
    """Decorator of what draws into a folder: without matplotlib it draws nothing, and says why."""

    @wraps(plot)
    def plotted(*args: P.args, **kwargs: P.kwargs) -> list[Path]:
        return plot(*args, **kwargs) if _can_draw() else []

    return plotted


@cache
def _can_draw() -> bool:
    """Whether matplotlib is here; what is missing is said once in a process."""
    try:
        need("matplotlib", "Drawing pictures", "pictures")
    except MissingExtra as error:
        print(error, file=sys.stderr)
        return False
    return True


def save_png(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write ``<name>.png`` for each figure; the files."""
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        figure.savefig(path, format="png")
    return paths


def svg(figure: Figure) -> str:
    """An ``<svg>`` element for a page, in colour and font of the text around it; ids begin with PREFIX."""
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedpart"}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    head, end, body = text.partition(">")
    head = re.sub(r'\s(xmlns(:xlink)?|width|height|version)="[^"]*"', "", head) + ' fill="currentColor"'
    body = re.sub("#000000|#b0b0b0", "currentColor", body)  # black, and the grid's grey; text has no colour
    for i, colour in enumerate(COLOURS):
        body = body.replace(colour.lower(), f"var(--c{i})")
    text = f"{head}{end}{body}".replace("'DejaVu Sans', ", "")
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{PREFIX}", text).strip()
