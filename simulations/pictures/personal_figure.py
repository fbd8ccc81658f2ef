"""The picture of personal networks: what each client gains, sorted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simulations.pictures.colours import COLOURS
from simulations.pictures.figures import canvas, drawn, dress, legend_above, save_png
from simulations.results.personal import Gains

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@drawn
def plot_personal(gains: Gains, out: Path) -> list[Path]:
    """Draw ``personal.png`` into ``out``."""
    return save_png({"personal": personal_figure(gains)}, out)


def personal_figure(gains: Gains) -> Figure:
    """A bar for each client, from the largest gain to the largest loss, and the mean as a line."""
    classes = gains.metric == "accuracy"
    factor, label = (100.0, "gain in accuracy [points]") if classes else (1.0, "gain [nats per example]")
    values = factor * np.sort([one.gain[gains.metric] for one in gains.clients])[::-1]
    figure, (ax,) = canvas(f"Personal networks, {len(values)} clients")
    dress(ax, label, "clients, ranked by gain", limits=(0.5, len(values) + 0.5))
    places = np.arange(1, len(values) + 1)
    ax.bar(places, values, width=0.85, color=[COLOURS[0] if value >= 0 else COLOURS[1] for value in values])
    ax.axhline(0, color="0.3", lw=0.8)
    mean = factor * gains.mean("gain", gains.metric)
    ax.axhline(mean, color="0.3", lw=1.4, ls="--", label=f"mean over held-out examples: {mean:+.3g}")
    legend_above(ax)
    return figure
