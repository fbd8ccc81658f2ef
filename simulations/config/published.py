"""The paper's own numbers, to put beside ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simulations.config.yaml_files import read_yaml


@dataclass(frozen=True)
class Published:
    """A cell of the paper's Table 4."""

    name: str  # data set and training points, e.g. mnist-1.25k
    rounds: int  # that the paper trains for
    # by method, mean and standard error on validation data over four seeds; fractions
    accuracy: dict[str, dict[str, float]]

    @classmethod
    def of(cls, name: str) -> Published:
        """The cell of that name."""
        cells = read_yaml(Path(__file__).with_name("published.yaml"))
        if name not in cells:
            raise ValueError(f"the paper's Table 4 has no cell {name!r}; its cells are {', '.join(cells)}")
        rounds, found = cells[name].pop("rounds"), cells[name]
        accuracy = {method: {"mean": m / 100, "error": e / 100} for method, (m, e) in found.items()}
        return cls(name, rounds, accuracy)
