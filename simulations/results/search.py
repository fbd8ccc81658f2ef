"""Search: what it has found, and what it has cost, trial by trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from fedpart.loggers.lines import finite
from fedpart.training.files import read_object, sealed
from simulations.config.load import Config, ConfigError, ExperimentConfig
from simulations.config.search import OBJECTIVES, SearchSection
from simulations.folders.contents import run_name
from simulations.folders.data_files import git_commit, versions
from simulations.folders.run_directory import holds_run, read_metrics, saved_config
from simulations.results.scores import BYTES, TIME, counted
from simulations.results.tables import LF, terminal_table, write_csv, write_json

SEARCH = "search.json"  # what a search's folder has once it has ended
_SHOWN = 10  # of the best trials
_TESTED = ("test_accuracy", "test_nll")


@dataclass(frozen=True)
class Cost:
    """What a run has used: rounds or iterations, bytes both ways; 0 of what private clients do not tell."""

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
        sums = (sum(line.get(key) or 0 for line in lines) for key in vars(self) if key != "rounds")
        last = lines[-1] if lines else {}
        return replace(self + Cost(0, *sums), rounds=last.get("round", last.get("iteration", self.rounds)))

    @property
    def bytes(self) -> int:
        return self.download_bytes + self.upload_bytes + self.evaluation_bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(sum, zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True)
class TrialRow:
    """A trial that has ended: its values by key, and the summary of a finished run, or an empty one."""

    number: int
    values: dict[str, Any]
    state: Literal["complete", "pruned", "failed"]
    objective: float | None
    cost: Cost
    summary: dict[str, Any]


@dataclass(frozen=True)
class Found:
    """The trials of a search that has ended."""

    section: SearchSection
    rows: Sequence[TrialRow]
    config: Config

    @classmethod
    def load(cls, folder: Path) -> Found:
        """What :meth:`write` has left in a folder, read back; of a summary only the scores on test data."""
        config, rows = saved_config(folder), []
        try:
            content = read_object((folder / SEARCH).read_bytes(), run_name(folder))
            section = SearchSection.model_validate(content["search"])
            for line in content["trials"]:
                tried, tested = {k: line[k] for k in section.space}, {k: line.get(k) for k in _TESTED}
                cost = Cost(**{name: line[name] for name in Cost.__dataclass_fields__})
                ended = line["state"], line[section.objective], cost
                rows.append(TrialRow(line["trial"], tried, *ended, tested))
        except (OSError, ValueError, KeyError, TypeError) as error:  # of an earlier version, or damaged
            remedy = f"go on with fedpart search --resume {quote(str(folder))}"
            raise ConfigError(f"{folder / SEARCH} cannot be read; {remedy}.") from error
        return cls(section, rows, config)

    @property
    def federated(self) -> bool:
        """Whether its runs are, so that bytes are what they cost."""
        return isinstance(self.config, ExperimentConfig)

    @property
    def curve(self) -> list[tuple[Cost, TrialRow | None]]:
        """After each trial, what all have cost so far, and of the complete ones the best by the objective."""
        known, spent, best = [], Cost(), None
        sign = 1 if OBJECTIVES[self.section.objective] else -1
        for row in self.rows:
            spent += row.cost
            scored = row.state == "complete" and row.objective is not None
            if scored and (best is None or sign * row.objective > sign * best.objective):
                best = row
            known.append((spent, best))
        return known

    @property
    def spent(self) -> Cost:
        return self.curve[-1][0] if self.rows else Cost()

    @property
    def best(self) -> TrialRow | None:
        """None: no trial has been completed."""
        return self.curve[-1][1] if self.rows else None

    def ranked(self) -> list[TrialRow]:
        """The best by the objective first, those without one last."""
        sign = -1 if OBJECTIVES[self.section.objective] else 1
        return sorted(self.rows, key=lambda row: (row.objective is None, sign * (row.objective or 0.0)))

    def texts(self, row: TrialRow) -> tuple[list[str], str]:
        """Of a trial what it tried, and what it has cost."""
        values = [row.values[key] for key in self.section.space]
        tried = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in values]
        return tried, BYTES.text(row.cost.bytes) if self.federated else f"{row.cost.rounds:,}"

    def cost(self) -> str:
        spent = self.spent
        parts = [f"{spent.rounds:,} {self.config.clock.total}"]
        parts += [BYTES.text(spent.bytes)] if self.federated else []
        if spent.examples:
            parts += [f"{spent.examples:,} examples", f"{TIME.text(spent.client_seconds)} of clients"]
        return ", ".join([*parts, TIME.text(spent.seconds)])

    def table(self) -> RenderableType:
        """The best trials, 80 columns wide, and what all have cost."""
        shown = [row for row in self.ranked() if row.objective is not None][:_SHOWN]
        head = ["trial", *_heads([*self.section.space]), self.section.objective]
        rows = []
        for row in shown:
            tried, cost = self.texts(row)
            rows.append([str(row.number), *tried, f"{row.objective:.4g}", cost])
        states = [row.state for row in self.rows]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        table = terminal_table(
            [*head, "bytes" if self.federated else "iterations"],
            f"search by {self.section.sampler}: the best trials",
            padding=1,
            rows=rows,
            bold=shown.index(self.best) if self.best in shown else None,
        )
        return Group(table, Text(f"{counted(len(states), 'trial')} ({counts}): {self.cost()}"))

    def write(self, out: Path) -> None:
        """``search.csv``, a line for each trial with what was spent by then, and ``search.json``."""
        lines = [
            {
                "trial": row.number,
                "state": row.state,
                **row.values,
                self.section.objective: row.objective,
                **asdict(row.cost),
                **{f"spent_{key}": value for key, value in asdict(spent).items()},
                "best_trial": None if best is None else best.number,
                **{key: row.summary.get(key) for key in _TESTED},
                **{f"best_{key}": None if best is None else best.summary.get(key) for key in _TESTED},
            }
            for row, (spent, best) in zip(self.rows, self.curve, strict=True)
        ]
        write_csv(out / "search.csv", lines)
        best = self.best
        content: dict[str, Any] = {
            "search": self.section.model_dump(mode="json"),
            "best": None if best is None else {"trial": best.number, "values": best.values},
            "spent": asdict(self.spent),
            "trials": lines,
            "commit": git_commit(),
            "versions": versions(),
        }
        write_json(out / SEARCH, sealed(finite(content), run_name(out)))


def _heads(keys: Sequence[str]) -> list[str]:
    """A key's last part where no other key has it; or else the whole key."""
    last = [key.rpartition(".")[2] for key in keys]
    pairs = zip(keys, last, strict=True)
    return [part if last.count(part) == 1 else key.replace(".", f".{LF}") for key, part in pairs]
