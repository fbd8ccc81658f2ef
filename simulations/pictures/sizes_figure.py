"""A figure of networks of different sizes: what each is worth, and what its clients sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from simulations.pictures.colours import COLOURS, places
from simulations.pictures.figures import canvas, dress, legend_below, wrapped
from simulations.results.curves import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# what of a row of summary.json's by_architecture is drawn: in which unit, and how it is called
SIZES = {
    "accuracy": (100.0, "Test accuracy [%]"),
    "nll": (1.0, "Test loss [nats]"),
    "upload_bytes": (1e-6, "Sent by a client [MB]"),
    "download_bytes": (1e-6, "Received by a client [MB]"),
}


def by_size(runs: Sequence[Run]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each size in finished runs that have several, by the options that make it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for row in run.summary.get("by_architecture", ()):
            name = ", ".join(f"{key} {value}" for key, value in row["model_options"].items())
            found.setdefault(name or "as it is", []).append(row)
    return found


def sizes_figure(runs: Mapping[str, Sequence[Run]], key: str, *, page: bool = False) -> Figure:
    """Bars of one of :data:`SIZES`, a group for each size and a colour for each method; means over seeds.

    At least one run has several sizes, whose rows have the key.
    """
    scale, label = SIZES[key]
    rows = {method: by_size(own) for method, own in runs.items()}
    rows = {method: own for method, own in rows.items() if own}
    names = list(dict.fromkeys(name for own in rows.values() for name in own))
    figure, (ax,) = canvas(f"{label} by size of the network", page=page)
    wide = 0.8 / len(rows)
    place = places(runs)
    for i, (method, own) in enumerate(rows.items()):
        values = [_mean(own.get(name, []), key) * scale for name in names]
        x = np.arange(len(names)) + (i - (len(rows) - 1) / 2) * wide
        ax.bar(x, values, wide, color=COLOURS[place[method]], label=method)
    dress(ax, label)
    ax.set_xticks(range(len(names)), [wrapped(name, 12) for name in names])
    legend_below(figure, *ax.get_legend_handles_labels())
    return figure


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    """Over runs; of bytes, those of a client."""
    values = [
        row[key] / (max(1, row["clients"]) if key.endswith("bytes") else 1) for row in rows if key in row
    ]
    return mean(values) if values else 0.0
