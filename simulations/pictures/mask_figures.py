"""A learned mask over the inputs: which of them it keeps, over time and at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulations.pictures.figures import COLOURS, canvas, dress
from simulations.results.curves import Run
from simulations.results.psi_parts import PsiParts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def mask_figure(run: Run) -> Figure:
    """Probabilities to keep each input: over the run as colours, and those that it ended with as bars.

    Args:
        run: one that learned a mask.
    """
    physical = run.physical()
    keep = np.stack([physical[name] for name in PsiParts.of(physical).keeps])  # [inputs, reports], percent
    inputs = np.arange(len(keep))  # from 0, as psi's names have them
    about = f": {run.summary['method']}, seed {run.summary['seed']}" if run.summary else ""
    figure, (over_time, last) = canvas(f"Learned mask{about}", panels=2)
    x = run.counts()
    dress(over_time, "input", run.clock, "Probability to keep an input")
    over_time.grid(False)
    edges = np.concatenate([x[:1] - (x[1:2] - x[:1] if len(x) > 1 else 1), x])  # a report ends its interval
    shown = over_time.pcolormesh(
        edges, np.arange(len(keep) + 1) - 0.5, keep, cmap="cividis", vmin=0, vmax=100
    )
    over_time.set_ylim(len(keep) - 0.5, -0.5)
    bar = figure.colorbar(shown, ax=over_time, pad=0.01, ticks=[0, 25, 50, 75, 100])
    bar.set_label("probability [%]", fontsize=12)
    bar.ax.tick_params(labelsize=11)
    kept = run.summary.get("lml_iteration", x[-1])  # early stopping ends with an earlier state
    final = keep[:, list(x).index(kept)]
    count = f"{np.sum(final > 50)} of {len(keep)} kept"
    dress(last, "probability [%]", "input", f"At {run.clock} {kept:,.0f}: {count}")
    colours = [COLOURS[0] if p > 50 else COLOURS[1] for p in final]
    last.bar(inputs, final, color=colours, width=0.75)
    last.set_axisbelow(True)
    last.axhline(50, color="0.3", lw=1.2, ls="--")
    last.set_ylim(0, 100)
    last.set_xlim(-0.6, len(keep) - 0.4)
    return figure
