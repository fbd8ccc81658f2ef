"""The paper's own numbers, to put beside ours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simulations.config.file import read_yaml

_FILE = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True)
class Published:
    """A cell of the paper's Table 4.

    Attributes:
        name: data set and training points, e.g. ``mnist-1.25k``.
        rounds: that the paper trains for.
        accuracy: by method, validation accuracy and its standard error over four seeds; fractions.
    """

    name: str
    rounds: int
    accuracy: dict[str, tuple[float, float]]

    @classmethod
    def of(cls, name: str) -> Published:
        """The cell of that name.

        Raises:
            ValueError: there is none; the message names all.
        """
        cells = _cells()
        if name not in cells:
            raise ValueError(f"the paper's Table 4 has no cell {name!r}; its cells are {', '.join(cells)}")
        found = dict(cells[name])
        rounds = found.pop("rounds")
        return cls(name, rounds, {method: (m / 100, e / 100) for method, (m, e) in found.items()})


@cache
def _cells() -> dict[str, dict[str, Any]]:
    return read_yaml(_FILE)
