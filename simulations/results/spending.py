"""Spending: what a search has cost, trial by trial, and what its user would have deployed by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from simulations.folders.run_directory import holds_run, read_metrics, read_summary


@dataclass(frozen=True)
class Cost:
    """What a run has used, whether or not it was stopped.

    Attributes:
        rounds: that were computed; iterations of centralised training.
        download_bytes, upload_bytes: of its rounds, from and to the server.
        evaluation_bytes: of its clients' evaluations, both ways.
        seconds: of its rounds, evaluations included.
    """

    rounds: int = 0
    download_bytes: int = 0
    upload_bytes: int = 0
    evaluation_bytes: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, folder: Path) -> Cost:
        """Of the run in a folder, as its metrics say."""
        lines = read_metrics(folder) if holds_run(folder) else []
        last = lines[-1] if lines else {}
        return cls(
            last.get("round", last.get("iteration", 0)),
            *(
                sum(line.get(key) or 0 for line in lines)
                for key in ("download_bytes", "upload_bytes", "evaluation_bytes")
            ),
            sum(line["seconds"] for line in lines),
        )

    @property
    def bytes(self) -> int:
        """All that was sent."""
        return self.download_bytes + self.upload_bytes + self.evaluation_bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class TrialRow:
    """A trial that has ended.

    Attributes:
        number: 0..; values: by key; state: how it ended; objective: None if it has none.
        cost: its own.
        summary: of a finished run; empty otherwise.
    """

    number: int
    values: dict[str, Any]
    state: Literal["complete", "pruned", "failed"]
    objective: float | None
    cost: Cost
    summary: dict[str, Any]


@dataclass(frozen=True)
class Deployed:
    """After a trial: what all trials have cost so far, and the run whose network would be used."""

    spent: Cost
    best: TrialRow | None


def deployed(rows: Sequence[TrialRow], larger: bool) -> list[Deployed]:
    """What a user would have after each trial: of the complete ones the best by the objective."""
    found, spent, best = [], Cost(), None
    for row in rows:
        spent += row.cost
        if row.state == "complete" and row.objective is not None:
            better = best is None or (row.objective > best.objective) == larger  # type: ignore[operator]
            if better and (best is None or row.objective != best.objective):
                best = row
        found.append(Deployed(spent, best))
    return found


def summary_of(folder: Path) -> dict[str, Any]:
    """Of the run in a folder; empty if it is not finished."""
    return (read_summary(folder) if holds_run(folder) else None) or {}
