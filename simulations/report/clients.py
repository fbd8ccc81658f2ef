"""Who has what: examples of each label, or turned by which angles, that every client holds; as heat maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpart import Dataset
from fedpart.data import angle_bins, has_labels
from fedpart.federated.clients.assignment import ChunkAssignment
from simulations.config.load import ExperimentConfig
from simulations.pictures.colours import GREY, THEMES, stops
from simulations.pictures.figures import (
    PAGE_WIDTH,
    PREFIX,
    Chart,
    dress,
    dress_bar,
    legend_below,
    svg,
    wrapped,
)
from simulations.results.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Counts = NDArray[np.int64]
FEW = 20  # labels that each get a tick


@dataclass(frozen=True)
class Clients:
    """The clients of a run, sorted by chunk and then by number."""

    chunks: Counts  # chunk (1..C) of each, [N]; all 1 where the method has none
    labels: Counts | None  # examples by label and client, [K, N]; None without labels
    angles: Counts | None  # examples by angle bin and client, [bins, N]; None if images are not rotated
    max_angle: float  # degrees; the bins divide +- that evenly

    @classmethod
    def of(cls, config: ExperimentConfig, shards: Sequence[Dataset], num_classes: int) -> Clients:
        """Count the K classes' examples, client i's in ``shards[i]``; method and seed decide the chunks."""
        proportions = config.build_method().proportions(config.chunks)
        assignment = ChunkAssignment(proportions, config.clients, config.seed)
        chunks = np.array([assignment[client] for client in range(config.clients)])
        order = np.argsort(chunks, kind="stable")
        first, bins = shards[0], config.split.bins
        labels = angles = None
        if has_labels(first):
            labels = _counts([shard.targets.numpy() for shard in shards], num_classes)[:, order]
        if first.groups is not None and config.rotated:
            most = math.radians(config.max_angle)
            found = [angle_bins(shard.groups, bins, most) for shard in shards if shard.groups is not None]
            angles = _counts(found, bins)[:, order]
        return cls(chunks[order], labels, angles, config.max_angle)


def _counts(groups: Sequence[Counts], number: int) -> Counts:
    return np.stack([np.bincount(own, minlength=number) for own in groups], axis=1)


def client_charts(clients: Clients, classes: Sequence[str] = ()) -> list[Chart]:
    """Clients against labels (``classes`` are their names, if any) and rotation bins, their chunks below."""
    charts = []
    if clients.labels is not None:
        number, ticks = len(clients.labels), {}
        if number <= FEW:
            names = [wrapped(name) for name in classes] or [*map(str, range(number))]
            ticks = {"ticks": range(number), "labels": names, "parse_math": False}
        title = "Examples by client and label"
        charts.append(_heat_map(title, clients, clients.labels, "label", (-0.5, number - 0.5), ticks))
    if clients.angles is not None:
        bins, most = len(clients.angles), clients.max_angle
        ticks = {"ticks": np.linspace(-most, most, bins + 1)[:: max(1, bins // 5)]}
        title = "Examples by client and rotation"
        charts.append(_heat_map(title, clients, clients.angles, "rotation [degrees]", (-most, most), ticks))
    return charts


def _heat_map(
    title: str, clients: Clients, counts: Counts, axis: str, ends: tuple[float, float], ticks: dict[str, Any]
) -> Chart:
    """Counts ``[rows, N]`` from the lower to the upper end of the y axis, for a light and a dark page."""
    drawn = []
    for theme in THEMES:
        shown = svg(_heat_figure(theme, clients, counts, axis, ends, ticks))
        drawn.append(f'<div class="on-{theme}">{shown.replace(PREFIX, f"{PREFIX}{theme}-")}</div>')
    held = f"{counted(counts.shape[1], 'client')}, {counted(int(counts.sum()), 'example')}"
    return Chart(title, {"": "".join(drawn)}, f"{held}; hatched where there are none.")


def _heat_figure(
    theme: str, clients: Clients, counts: Counts, axis: str, ends: tuple[float, float], ticks: dict[str, Any]
) -> Figure:
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle
    from matplotlib.ticker import MaxNLocator

    number, chunks = counts.shape[1], int(clients.chunks.max())
    colours, palette = ListedColormap(stops(theme, 0, 256)), stops(theme, 1, chunks)
    figure = Figure(figsize=(PAGE_WIDTH, 4.0), layout="constrained")
    ax, strip = figure.subplots(2, 1, height_ratios=(12, 1), sharex=True)
    style: dict[str, Any] = {"vmin": 1, "aspect": "auto", "interpolation": "none", "origin": "lower"}
    place, shades = (-0.5, number - 0.5), {"cmap": colours, "vmax": max(2, counts.max())}
    image = ax.imshow(np.ma.masked_equal(counts, 0), extent=(*place, *ends), **shades, **style)
    corner, size = (place[0], ends[0]), (number, ends[1] - ends[0])
    ax.add_patch(Rectangle(corner, *size, fill=False, hatch="////", ec=GREY, lw=0, zorder=-1))
    shades = {"cmap": ListedColormap(palette), "vmax": max(2, chunks)}
    strip.imshow(clients.chunks[None], extent=(*place, 0, 1), **shades, **style)
    dress(ax, axis)
    dress(strip, "", "clients, sorted by chunk")
    ax.grid(False)
    strip.grid(False)
    if ticks:
        ax.set_yticks(**ticks)
    strip.set_yticks([])
    strip.set_ylabel("chunk", fontsize=12, rotation=0, ha="right", va="center")
    bar = figure.colorbar(image, ax=[ax, strip], aspect=30, pad=0.02, ticks=MaxNLocator(6, integer=True))
    dress_bar(bar, "examples")
    bar.outline.set_visible(False)
    if chunks <= 8:
        sizes = np.bincount(clients.chunks, minlength=chunks + 1)[1:]
        labels = [f"chunk {k} ({counted(int(size), 'client')})" for k, size in enumerate(sizes, start=1)]
        legend_below(figure, [Patch(color=colour) for colour in palette], labels)
    return figure
