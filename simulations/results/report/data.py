"""What needs the data, read again as configured: learned augmentation, and which client holds what."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpart import Dataset
from fedpart.data import Splits, angle_bins, has_labels
from fedpart.data.splitting.recipes import BINS
from fedpart.federated.clients import assigned_chunks
from simulations.building.data import load_data, split_among_clients
from simulations.config.load import Config, ExperimentConfig
from simulations.folders.data_files import changed_data, in_short, listed_data
from simulations.results.curves import Run
from simulations.results.pictures import figures as fig
from simulations.results.pictures.run_figures import examples, run_blocks, sheet
from simulations.results.report.sections import PageSection, Sheet
from simulations.results.scores import counted, span

Counts = NDArray[np.int64]
FEW = 20  # labels that each get a tick


@dataclass(frozen=True)
class Data:
    """What the runs of a comparison have in common: their data, and who holds which."""

    splits: Splits
    shards: Sequence[Dataset]  # none of a centralised run


def read_data(config: Config, folders: Sequence[Path]) -> Data | str:
    """Read and split the data of runs, without a download; or a sentence on why that cannot be done."""
    if config.data_dir is not None and not Path(config.data_dir).exists():
        return f"The data cannot be read here (there is no {config.data_dir})."
    try:
        listed = listed_data(config)
        if others := next(filter(None, (changed_data(folder, listed) for folder in folders)), None):
            return f"The data are not those that the runs are made of ({in_short(others)})."
        splits = load_data(config, download=False)
        federated = isinstance(config, ExperimentConfig)
        return Data(splits, split_among_clients(config, splits.train) if federated else [])
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        return f"The data cannot be read here ({' '.join(str(error).split()).rstrip('.')})."


def images_section(found: Sequence[Run], data: Data | str) -> PageSection | str | None:
    """What each method's augmentation does, drawn for its first finished seed; or why it is not."""
    from matplotlib.image import imsave

    if isinstance(data, str):
        return f"{data} Neither augmentation nor clients are drawn."
    sheets: dict[str, list[Sheet]] = {}
    (_, names), problems = examples(data.splits), []
    firsts = {run.config.method: run for run in reversed(found) if run.finished}
    for run in (run for run in found if firsts.get(run.config.method) is run):
        try:
            blocks = run_blocks(run.folder, data.splits, limit=None)
        except (ValueError, TypeError, OSError, ImportError) as error:
            problems.append(f"{run.name} cannot be drawn: {error}")
            continue
        for title, block in blocks:
            imsave(stream := io.BytesIO(), sheet(block), format="png")
            image = f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
            sheets.setdefault(run.name, []).append(Sheet(title, image, block.shape[1]))
    if not sheets:
        return " ".join(problems) or None
    text = ""
    config = found[0].config
    if getattr(config, "rotated", False):
        turned = span(-config.max_angle, config.max_angle, "deg")
        text = f"The data had each image turned before, once, by an angle of its own in {turned}."
    text += f" The rows, from above: {', '.join(names)}." if names else ""
    return PageSection("Learned augmentation", sheets=sheets, text=text, lines=problems)


def clients_section(config: ExperimentConfig, data: Data | str) -> PageSection | None:
    """Who holds which examples, and the chunks of a run; None: the data cannot be read, or say neither."""
    if isinstance(data, str):
        return None
    clients = Clients.of(config, data.shards, data.splits.num_classes)
    chunks = f"Chunks are those of {config.method} with seed {config.seed}."
    text = chunks if clients.chunks.max() > 1 else ""
    charts = client_charts(clients, data.splits.classes)
    return PageSection("Clients", charts, text=text) if charts else None


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
        assignment = assigned_chunks(proportions, config.clients, config.seed)
        chunks = np.array([assignment[client] for client in range(config.clients)])
        order = np.argsort(chunks, kind="stable")
        first, most = shards[0], math.radians(config.max_angle)
        labels = angles = None
        if has_labels(first):
            labels = _counts([shard.targets.numpy() for shard in shards], num_classes)[:, order]
        if first.groups is not None and config.rotated:
            angles = _counts([angle_bins(shard.groups, max_angle=most) for shard in shards], BINS)[:, order]
        return cls(chunks[order], labels, angles, config.max_angle)


def _counts(groups: Sequence[Counts], number: int) -> Counts:
    return np.stack([np.bincount(group, minlength=number) for group in groups], axis=1)


def client_charts(clients: Clients, classes: Sequence[str] = ()) -> list[fig.Chart]:
    """Clients against labels (``classes`` are their names, if any) and rotation bins, their chunks below."""
    charts = []
    if clients.labels is not None:
        number, ticks = len(clients.labels), {}
        if number <= FEW:
            names = [fig.wrapped(name) for name in classes] or [*map(str, range(number))]
            ticks = {"ticks": range(number), "labels": names, "parse_math": False}
        charts.append(_heat_map(clients, clients.labels, "label", (-0.5, number - 0.5), ticks))
    if clients.angles is not None:
        bins, most = len(clients.angles), clients.max_angle
        ticks = {"ticks": np.linspace(-most, most, bins + 1)[:: max(1, bins // 5)]}
        charts.append(_heat_map(clients, clients.angles, "rotation [degrees]", (-most, most), ticks))
    return charts


def _heat_map(clients: Clients, counts: Counts, axis: str, *form: Any) -> fig.Chart:
    """Counts ``[rows, N]`` for a light and a dark page; ``form``: ends of the y axis, and its ticks."""
    drawn = ""
    for theme in fig.THEMES:
        shown = fig.svg(_heat_figure(theme, clients, counts, axis, *form))
        drawn += f'<div class="on-{theme}">{shown.replace(fig.PREFIX, f"{fig.PREFIX}{theme}-")}</div>'
    held = f"{counted(counts.shape[1], 'client')}, {counted(int(counts.sum()), 'example')}"
    title = f"Examples by client and {axis.partition(' [')[0]}"
    return fig.Chart(title, {"": drawn}, f"{held}; hatched where there are none.")


def _heat_figure(
    theme: str, clients: Clients, counts: Counts, axis: str, ends: tuple[float, float], ticks: dict[str, Any]
) -> fig.Figure:
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle
    from matplotlib.ticker import MaxNLocator

    number, chunks = counts.shape[1], int(clients.chunks.max())
    palette, place = fig.stops(theme, 1, chunks), (-0.5, number - 0.5)
    figure = Figure(figsize=(fig.PAGE_WIDTH, 4.0), layout="constrained")
    ax, strip = figure.subplots(2, 1, height_ratios=(12, 1), sharex=True)

    def show(axes: Any, values: Any, ends: tuple[float, float], colours: list[str]) -> Any:
        form = {"aspect": "auto", "interpolation": "none", "origin": "lower", "extent": (*place, *ends)}
        return axes.imshow(values, cmap=ListedColormap(colours), vmin=1, vmax=max(2, values.max()), **form)

    image = show(ax, np.ma.masked_equal(counts, 0), ends, fig.stops(theme, 0, 256))
    corner, size = (place[0], ends[0]), (number, ends[1] - ends[0])
    ax.add_patch(Rectangle(corner, *size, fill=False, hatch="////", ec=fig.GREY, lw=0, zorder=-1))
    show(strip, clients.chunks[None], (0, 1), palette)
    fig.dress(ax, axis)
    fig.dress(strip, "", "clients, sorted by chunk")
    ax.grid(False)
    strip.grid(False)
    if ticks:
        ax.set_yticks(**ticks)
    strip.set_yticks([])
    strip.set_ylabel("chunk", fontsize=12, rotation=0, ha="right", va="center")
    bar = figure.colorbar(image, ax=[ax, strip], aspect=30, pad=0.02, ticks=MaxNLocator(6, integer=True))
    fig.dress_bar(bar, "examples")
    bar.outline.set_visible(False)
    if chunks <= 8:
        sizes = np.bincount(clients.chunks, minlength=chunks + 1)[1:]
        labels = [f"chunk {k} ({counted(int(size), 'client')})" for k, size in enumerate(sizes, start=1)]
        fig.legend_below(figure, [Patch(color=colour) for colour in palette], labels)
    return figure
