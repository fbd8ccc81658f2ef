"""Found: what a search has found and what it has cost, for the terminal, CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedpart.training.files import parsed
from simulations.config.load import Config, ConfigError, ExperimentConfig
from simulations.config.search import OBJECTIVES, SearchSection
from simulations.folders.run_directory import saved_config
from simulations.folders.versions import git_commit, versions
from simulations.results.spending import SEARCH, Cost, Deployed, TrialRow, deployed
from simulations.results.tables import LF, terminal_table, write_csv, write_json

_SHOWN = 10  # of the best trials
_TESTED = ("test_accuracy", "test_nll")


@dataclass(frozen=True)
class Found:
    """The trials of a search that has ended."""

    section: SearchSection
    rows: Sequence[TrialRow]
    config: Config

    @classmethod
    def load(cls, folder: Path) -> Found:
        """What :meth:`write` has left in a folder, read back; of a summary only the scores on test data.

        Raises:
            ConfigError: its ``search.json`` is that of an earlier version or damaged.
        """
        try:
            content = parsed((folder / SEARCH).read_bytes())
            config, section = saved_config(folder), SearchSection.model_validate(content["search"])
            objective = section.objective
            rows = []
            for line in content["trials"]:
                cost = Cost(**{name: line[name] for name in Cost.__dataclass_fields__})
                values = {key: line[key] for key in section.space}
                tested = {key: line.get(key) for key in _TESTED}
                rows.append(TrialRow(line["trial"], values, line["state"], line[objective], cost, tested))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{folder / SEARCH} cannot be read; go on with fedpart search --resume {folder}."
            ) from error
        return cls(section, rows, config)

    @property
    def curve(self) -> list[Deployed]:
        """After each trial, what has been spent and what would be deployed."""
        return deployed(self.rows, OBJECTIVES[self.section.objective])

    @property
    def best(self) -> TrialRow | None:
        """None: no trial has been completed."""
        return self.curve[-1].best if self.rows else None

    @property
    def spent(self) -> Cost:
        """By all trials."""
        return self.curve[-1].spent if self.rows else Cost()

    def table(self) -> RenderableType:
        """The best trials, 80 columns wide, and what all have cost."""
        larger = OBJECTIVES[self.section.objective]
        scored = [row for row in self.rows if row.objective is not None]
        scored.sort(key=lambda row: row.objective, reverse=larger)  # type: ignore[arg-type, return-value]
        keys = list(self.section.space)
        federated = isinstance(self.config, ExperimentConfig)
        head = ["trial", *_heads(keys), self.section.objective, "MB" if federated else "iterations"]
        table = terminal_table(head, f"search by {self.section.sampler}: the best trials", None, padding=1)
        for row in scored[:_SHOWN]:
            values = [_text(row.values[key]) for key in keys]
            cost = f"{row.cost.bytes / 1e6:.1f}" if federated else str(row.cost.rounds)
            cells = [str(row.number), *values, f"{row.objective:.4g}", cost]
            table.add_row(*map(Text, cells), style="bold" if row is self.best else "")
        states = [row.state for row in self.rows]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        spent = self.spent
        sent = f"{spent.bytes / 1e6:,.1f} MB, " if federated else ""
        if spent.examples:
            sent += f"{spent.examples:,} examples, {spent.client_seconds:,.0f} s of clients, "
        line = (
            f"{len(states)} trials ({counts}): {spent.rounds} {self.config.clock.total}, {sent}"
            f"{spent.seconds:,.0f} s"
        )
        return Group(table, Text(line))

    def write(self, out: Path) -> None:
        """``search.csv``, a line for each trial with what was spent by then, and ``search.json``."""
        lines = []
        for row, now in zip(self.rows, self.curve, strict=True):
            best = now.best
            lines.append(
                {
                    "trial": row.number,
                    "state": row.state,
                    **row.values,
                    self.section.objective: row.objective,
                    **asdict(row.cost),
                    **{f"spent_{key}": value for key, value in asdict(now.spent).items()},
                    "best_trial": None if best is None else best.number,
                    **{key: row.summary.get(key) for key in _TESTED},
                    "best_test_accuracy": None if best is None else best.summary.get("test_accuracy"),
                    "best_test_nll": None if best is None else best.summary.get("test_nll"),
                }
            )
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
        write_json(out / SEARCH, content)


def _heads(keys: Sequence[str]) -> list[str]:
    """A key's last part where no other key has it; or else the whole key."""
    last = [key.rpartition(".")[2] for key in keys]
    pairs = zip(keys, last, strict=True)
    return [part if last.count(part) == 1 else key.replace(".", f".{LF}") for key, part in pairs]


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
