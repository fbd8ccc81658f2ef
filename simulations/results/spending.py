"""Spending: what a search has cost, trial by trial, and what its user would have deployed by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedpart.training.files import parsed
from simulations.config.load import ConfigError
from simulations.folders.run_directory import holds_run, read_metrics, read_summary, saved_config

SEARCH = "search.json"  # what a search's folder has once it has ended


@dataclass(frozen=True)
class Cost:
    """What a run has used, whether or not it was stopped.

    Attributes:
        rounds: that were computed; iterations of centralised training.
        download_bytes, upload_bytes: of its rounds, from and to the server.
        evaluation_bytes: of its clients' evaluations, both ways.
        examples, client_seconds: what its clients have computed, see :class:`.RoundReport`; 0 where they do
            not tell (privacy).
        seconds: of its rounds, evaluations included.
    """

    rounds: int = 0
    download_bytes: int = 0
    upload_bytes: int = 0
    evaluation_bytes: int = 0
    examples: int = 0
    client_seconds: float = 0.0
    seconds: float = 0.0

    @classmethod
    def of(cls, folder: Path) -> Cost:
        """Of the run in a folder, as its metrics say."""
        return cls().after(read_metrics(folder) if holds_run(folder) else [])

    def after(self, lines: Sequence[dict[str, Any]]) -> Cost:
        """With lines of ``metrics.jsonl`` more, which follow those before."""
        sums = [name for name in self.__dataclass_fields__ if name != "rounds"]
        own = Cost(0, *(sum(line.get(key) or 0 for line in lines) for key in sums))
        last = lines[-1] if lines else {}
        return replace(self + own, rounds=last.get("round", last.get("iteration", self.rounds)))

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


@dataclass(frozen=True)
class Point:
    """What had been spent at a moment, and the test accuracy of what its user would have deployed then."""

    spent: Cost
    accuracy: float | None


def points(folder: Path) -> list[Point]:
    """What a finished search or federated run would have had deployed, over what it had spent.

    Of a search a point after each trial, see :func:`deployed`. Of a run a point at each evaluation, with its
    accuracy on validation data, by which nothing was chosen; the last one has that on test data.

    Raises:
        ConfigError: there is no such search or run, or it has no accuracy on test data.
    """
    if (folder / SEARCH).is_file():
        lines = parsed((folder / SEARCH).read_bytes())["trials"]
        found = [Point(_spent_by(line), line["best_test_accuracy"]) for line in lines]
        if found and not found[-1].spent.bytes:
            raise ConfigError(f"The search in {folder} has sent nothing; name searches of federated runs.")
    else:
        config = saved_config(folder) if holds_run(folder) else None
        summary, found, cost = (read_summary(folder, config) if config else None) or {}, [], Cost()
        if "rounds" not in summary:
            raise ConfigError(
                f"{folder} holds no finished search and no finished federated run; continue what is there "
                f"with --resume {folder}, or name other folders."
            )
        for line in read_metrics(folder):
            cost = cost.after([line])
            if line.get("val_accuracy") is not None:
                found.append(Point(cost, line["val_accuracy"]))
        if found and found[-1].spent == cost:
            found.pop()
        found.append(Point(cost, summary.get("test_accuracy")))
    if not found or found[-1].accuracy is None:
        raise ConfigError(f"{folder} has no accuracy on test data; name searches and runs that do.")
    return found


def _spent_by(line: dict[str, Any]) -> Cost:
    """What all trials had cost, in a line of a search's table."""
    return Cost(**{name: line[f"spent_{name}"] for name in Cost.__dataclass_fields__})
