"""Pictures of a search: Optuna's own, and what its user would deploy against what was spent."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulations.config.load import ExperimentConfig
from simulations.pictures.colours import COLOURS, MARKERS
from simulations.pictures.figures import DPI, canvas, drawn, dress, legend_below, save_png
from simulations.results.curves import Band
from simulations.results.search import Found

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@drawn
def plot_search(out: Path, found: Found, study: Any) -> list[Path]:
    """Draw ``spent.png`` into ``out``, and of Optuna ``history.png``, ``importance.png``, ``parallel.png``.

    Args:
        study: Optuna's; its pictures need two complete trials.
    """
    figures: dict[str, Figure] = {}
    curve = spent_figure(found)
    if curve is not None:
        figures["spent"] = curve
    paths = save_png(figures, out)
    if sum(row.state == "complete" for row in found.rows) > 1:
        paths += _optunas(out, study)
    return paths


def spent_figure(found: Found, *, page: bool = False) -> Figure | None:
    """Test accuracy of the run that is best by the objective so far, over what all have sent, or trained."""
    federated = isinstance(found.config, ExperimentConfig)
    points = [
        (now.spent.bytes / 1e6 if federated else now.spent.rounds, 100 * accuracy)
        for now in found.curve
        if now.best is not None and (accuracy := now.best.summary.get("test_accuracy")) is not None
    ]
    if not points:
        return None
    figure, (ax,) = canvas("What would be deployed", page=page)
    x, y = np.array(points).T
    ax.step(x, y, where="post", color=COLOURS[0], marker=".")
    spent = "bytes sent by all trials [MB]" if federated else "iterations of all trials"
    dress(ax, "test accuracy [%]", spent)
    return figure


@drawn
def plot_costs(bands: Mapping[str, Band], out: Path) -> list[Path]:
    """Draw ``costs.png`` into ``out``: accuracies of what is deployed (fractions) over bytes, by label."""
    figure, (ax,) = canvas("What would be deployed")
    for i, (label, band) in enumerate(bands.items()):
        own, colour = band.scaled(1e-6, 100.0), COLOURS[i % len(COLOURS)]
        marker = {"marker": MARKERS[i % len(MARKERS)], "markersize": 6, "markevery": [-1]}  # the end
        ax.step(own.x, own.mean, where="post", color=colour, lw=2, label=label, **marker)
        if own.error is not None:
            low, high = own.mean - own.error, own.mean + own.error
            ax.fill_between(own.x, low, high, step="post", color=colour, alpha=0.16, lw=0)
    dress(ax, "accuracy [%]", "bytes sent [MB]")
    ax.set_xscale("log")
    legend_below(figure, *ax.get_legend_handles_labels())
    return save_png({"costs": figure}, out)


def _optunas(out: Path, study: Any) -> list[Path]:
    """How the objective went, which keys decided it, and which values went together, as Optuna draws them."""
    import matplotlib

    matplotlib.use("Agg")  # Optuna draws with pyplot, which must not look for a screen
    import matplotlib.pyplot as plt
    from optuna.importance import PedAnovaImportanceEvaluator
    from optuna.visualization import matplotlib as drawn

    kinds: dict[str, Callable[[], Any]] = {
        "history": lambda: drawn.plot_optimization_history(study),
        "importance": lambda: drawn.plot_param_importances(study, evaluator=PedAnovaImportanceEvaluator()),
        "parallel": lambda: drawn.plot_parallel_coordinate(study),
    }
    paths = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few trials, and that the pictures are experimental
        for name, draw in kinds.items():
            axes = draw()
            figure = np.ravel(axes)[0].get_figure()
            paths.append(out / f"{name}.png")
            figure.savefig(paths[-1], dpi=DPI, bbox_inches="tight")
            plt.close(figure)
    return paths
