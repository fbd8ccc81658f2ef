"""The plain networks beside a selection's runs, judged by their diagonal Laplace evidence (App. I.4)."""

from __future__ import annotations

from pathlib import Path

from simulations.config.load import TrainingConfig
from simulations.sweeps.cells import Cell


def laplace_twin(cell: Cell, every: int, out: Path) -> Cell:
    """A cell's plain network: the same model, data, seeds and optimiser, one partition on all data.

    Args:
        cell: of the selection.
        every: iterations from one Laplace fit to the next.
        out: the selection's folder.
    """
    config = cell.config.resolved() | {
        "method": "none",
        "method_options": {"none": {"augment": True}},
        "evidence": "laplace",
        "evaluate_every": every,
    }
    folder = out / "laplace" / cell.folder.relative_to(out)
    return Cell(f"{cell.name}, plain", TrainingConfig.from_dict(config), folder)
