"""Charts of the page: SVG that takes the page's colours and fonts, small enough for a telephone."""

from __future__ import annotations

import base64
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from simulations.pictures.figures import COLOURS, DASHES, MANY, draw_group, dress, short
from simulations.pictures.plots import AVERAGED, METRICS, TRAFFIC_NAMES, draw_metric
from simulations.report.clients import Clients, Counts
from simulations.results.curves import Run, psi_bands
from simulations.results.psi_parts import groups
from simulations.results.tables import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1e1f21"  # stands for the page's text colour until the SVG is in the page
FEW = 20  # labels that each get a tick
PREFIX = "chart-id-"  # of all ids in an SVG, for which the page puts one for each chart


@dataclass(frozen=True)
class Chart:
    """A figure of the page.

    Attributes:
        title: above it.
        svg: the picture, an ``<svg>`` element; its ids begin with PREFIX.
        note: below it; may be empty.
    """

    title: str
    svg: str
    note: str = ""


@contextmanager
def chart_axes(found: list[str], rows: Sequence[float] = (1.0,), height: float = 3.3) -> Iterator[list[Axes]]:
    """Axes one below another, 4.7 inches wide; when the block ends, ``found`` gets the SVG.

    Args:
        found: gets one text.
        rows: relative heights.
        height: inches.
    """
    import matplotlib
    from matplotlib.figure import Figure

    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    ink: dict[Any, Any] = dict.fromkeys(names, INK)
    salt = {"svg.fonttype": "none", "svg.hashsalt": "fedpart"}
    with matplotlib.rc_context(ink | salt):
        figure = Figure(figsize=(4.7, height), layout="constrained")
        axes = figure.subplots(len(rows), 1, height_ratios=rows, squeeze=False, sharex=True)[:, 0].tolist()
        yield axes
        found.append(_svg(figure))


def _svg(figure: Figure) -> str:
    """Without what the page does not need: prolog, metadata, namespaces, and a size of its own."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    head, end, body = text.partition(">")
    head = re.sub(r'\s(xmlns(:xlink)?|width|height|version)="[^"]*"', "", head)
    text = f"{head}{end}{body}".replace(INK, "currentColor").replace("'DejaVu Sans', ", "")
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{PREFIX}", text).strip()


def metric_charts(runs: Mapping[str, Sequence[Run]], key: str, spread: str) -> list[Chart]:
    """The validation metric against rounds and against bytes up, down and together (the paper's Figure 10).

    Args:
        runs: by method; one without evaluations is left out.
        key: ``val_accuracy`` or ``val_nll``.
        spread: what the shade is.
    """
    shown = {method: [run for run in own if len(run.curve(key)[0])] for method, own in runs.items()}
    charts = []
    if any(shown.values()):
        for against in ("rounds", *TRAFFIC_NAMES):
            found: list[str] = []
            with chart_axes(found) as (ax,):
                draw_metric(ax, shown, against)
                _legend(ax, *ax.get_legend_handles_labels())
            title = f"{METRICS[key][1].capitalize()} over {TRAFFIC_NAMES.get(against, against)}"
            charts.append(Chart(title, found[0], f"{AVERAGED.capitalize()}. {spread}"))
    return charts


def psi_charts(runs: Mapping[str, Sequence[Run]], spread: str) -> list[Chart]:
    """Learned hyperparameters over rounds in physical units, a chart per kind."""
    methods = {method: psi_bands(own) for method, own in runs.items() if own}
    colours = {method: COLOURS[i % len(COLOURS)] for i, method in enumerate(runs)}
    last = max((len(run.metrics) for own in runs.values() for run in own), default=1)
    charts = []
    for group in groups(dict.fromkeys(name for bands in methods.values() for name in bands)):
        found: list[str] = []
        names = {name for line in group.lines for name in line.names}
        with chart_axes(found) as (ax,):
            dress(ax, group.axis, "round", limits=(1, last))
            draw_group(ax, group, methods, colours)
            if (above := ax.get_legend()) is not None:
                above.remove()
            learners = [method for method, bands in methods.items() if names & bands.keys()]
            handles = [ax.plot([], [], color=colours[method], lw=3)[0] for method in learners]
            labels = list(learners)
            if 1 < len(group.lines) <= MANY:
                for line, dash in zip(group.lines, DASHES, strict=False):
                    handles.append(ax.plot([], [], color="0.5", ls=dash, lw=1.8)[0])
                    labels.append(line.label)
            _legend(ax, handles, labels)
        ends = "Two lines of a kind are the ends of a range. " if len(group.lines[0].names) > 1 else ""
        if len(group.lines) > MANY:
            ends = f"Median of {len(group.lines)}, and where the middle 80% lie. "
        charts.append(Chart(group.title, found[0], ends + spread))
    return charts


def client_charts(clients: Clients, classes: Sequence[str] = ()) -> list[Chart]:
    """Heat maps of clients against labels and rotation bins, with the clients' chunks below.

    Args:
        clients: who has what.
        classes: names of the labels; none: their numbers.
    """
    charts = []
    if clients.labels is not None:
        title = "Examples by client and label"
        charts.append(_heat_map(title, clients, clients.labels, "label", names=classes))
    if clients.angles is not None:
        edges = np.linspace(-clients.max_angle, clients.max_angle, len(clients.angles) + 1)
        title = "Examples by client and rotation"
        charts.append(_heat_map(title, clients, clients.angles, "rotation [degrees]", edges=edges))
    return charts


def _heat_map(
    title: str,
    clients: Clients,
    counts: Counts,
    axis: str,
    *,
    names: Sequence[str] = (),
    edges: Any = None,
) -> Chart:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    number, chunks = counts.shape[1], int(clients.chunks.max())
    low, high = (-0.5, len(counts) - 0.5) if edges is None else (edges[0], edges[-1])
    palette = [colormaps["YlOrRd"](x) for x in np.linspace(0.2, 0.95, chunks)]
    colours = ListedColormap(colormaps["viridis_r"](np.linspace(0, 0.85, 256)))  # apart from a dark page
    found: list[str] = []
    with chart_axes(found, (12.0, 1.0), height=4.0) as (ax, strip):
        shown = np.ma.masked_equal(counts, 0)
        image = ax.imshow(
            shown, cmap=colours, vmin=1, vmax=max(2, counts.max()), aspect="auto", origin="lower",
            interpolation="none", extent=(-0.5, number - 0.5, low, high),
        )  # fmt: skip
        dress(ax, axis)
        ax.grid(False)
        if edges is not None:
            ax.set_yticks(edges[:: max(1, (len(edges) - 1) // 5)])
        elif len(counts) <= FEW:
            labels = [short(name) for name in names] or [*map(str, range(len(counts)))]
            ax.set_yticks(range(len(counts)), labels, parse_math=False)
        bar = ax.figure.colorbar(
            image, ax=[ax, strip], aspect=30, pad=0.02, ticks=MaxNLocator(6, integer=True)
        )
        bar.set_label("examples", fontsize=13)
        bar.ax.tick_params(labelsize=11)
        bar.outline.set_visible(False)
        strip.imshow(
            clients.chunks[None], cmap=ListedColormap(palette), vmin=1, vmax=max(2, chunks), aspect="auto",
            interpolation="none", extent=(-0.5, number - 0.5, 0, 1),
        )  # fmt: skip
        dress(strip, "", "clients, sorted by chunk")
        strip.grid(False)
        strip.set_yticks([])
        strip.set_ylabel("chunk", fontsize=12, rotation=0, ha="right", va="center")
        if chunks <= 8:
            sizes = [int((clients.chunks == k).sum()) for k in range(1, chunks + 1)]
            labels = [f"chunk {k} ({counted(size, 'client')})" for k, size in enumerate(sizes, start=1)]
            _legend(ax, [Patch(color=colour) for colour in palette], labels)
    held = f"{counted(number, 'client')}, {counted(int(counts.sum()), 'example')}"
    return Chart(title, found[0], f"{held}; empty where there are none.")


def contact_sheet(images: Tensor) -> str:
    """Images ``[n, s, c, h, w]`` in [0, 1], a row each, as the text of a PNG's data URL."""
    from matplotlib.image import imsave

    n, s, _, h, w = images.shape
    sheet = np.zeros((n * (h + 1) - 1, s * (w + 1) - 1, 4))
    pixels = images.float().clamp(0, 1).permute(0, 1, 3, 4, 2).expand(n, s, h, w, 3).numpy()
    for row, column in itertools.product(range(n), range(s)):
        place = slice(row * (h + 1), row * (h + 1) + h), slice(column * (w + 1), column * (w + 1) + w)
        sheet[place] = np.concatenate([pixels[row, column], np.ones((h, w, 1))], axis=2)
    stream = io.BytesIO()
    imsave(stream, sheet, format="png")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _legend(ax: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Below the axes, in as many columns as there is room for."""
    columns = 3 if max(map(len, labels), default=0) <= 14 else 2 if max(map(len, labels)) <= 24 else 1
    ax.figure.legend(
        handles, labels, ncols=columns, loc="outside lower center", fontsize=11, frameon=False,
        handlelength=2.2, columnspacing=1.2, handletextpad=0.5,
    )  # fmt: skip
