"""Anytime inference: what every subset of an ensemble's members costs, and how often it is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulations.pictures.colours import COLOURS, MARKERS
from simulations.pictures.figures import canvas, dress, legend_below

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def has_costs(summary: Mapping[str, Any]) -> bool:
    """Whether a run was that of an ensemble the cost of whose subsets is known."""
    rows = summary.get("ensemble", {}).get("subsets", ())
    return bool(rows) and all(row["multiply_adds"] is not None for row in rows)


def anytime_figure(summary: Mapping[str, Any]) -> Figure:
    """Accuracy of subsets against multiply-adds, and a line through those that no cheaper one equals.

    Args:
        summary: of a run that :func:`has_costs`.
    """
    rows = sorted(summary["ensemble"]["subsets"], key=lambda row: (row["multiply_adds"], -row["accuracy"]))
    figure, (ax,) = canvas("Test accuracy of every subset of members")
    best: list[tuple[float, float]] = []
    for row in rows:
        if not best or 100 * row["accuracy"] > best[-1][1]:
            best.append((row["multiply_adds"] / 1e6, 100 * row["accuracy"]))
    ax.step(*zip(*best, strict=True), where="post", color="0.6", label="best so far")
    for number, size in enumerate(sorted({len(row["members"]) for row in rows})):
        own = [row for row in rows if len(row["members"]) == size]
        ax.plot(
            [row["multiply_adds"] / 1e6 for row in own],
            [100 * row["accuracy"] for row in own],
            linestyle="",
            marker=MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            label=f"{size} member{'s' if size > 1 else ''}",
        )
    dress(ax, "Test accuracy [%]", "multiply-adds of an example [millions]")
    legend_below(figure, *ax.get_legend_handles_labels())
    return figure
