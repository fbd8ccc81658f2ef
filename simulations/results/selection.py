"""Selection: what was found out about the values of a key, for the terminal, CSV and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import Group, RenderableType
from rich.text import Text

from fedpart.checks import is_number
from fedpart.loggers.lines import finite
from fedpart.training.files import parsed
from simulations.config.load import ConfigError, TrainingConfig
from simulations.folders.data_files import git_commit, versions
from simulations.folders.run_directory import SUMMARY
from simulations.results.scores import EVIDENCES, Estimate, Score, counted, score_of
from simulations.results.tables import CAPTION, LF, terminal_table, write_json

# What is kept of each run: name here -> key in its summary.json and the factor of that.
_MEASURES = {
    "lml": ("lml", 1.0),
    **{f"{part}_accuracy": (f"{part}_accuracy", 1.0) for part in ("train", "test")},
    **{f"{part}_log_likelihood": (f"{part}_nll", -1.0) for part in ("train", "test")},
    "seconds": ("seconds", 1.0),
}
SHOWN = [name for name in _MEASURES if name != "seconds"]
OVERFIT = 0.05  # share of a loss: below it, networks are as good on what they have seen as on other examples


@dataclass(frozen=True)
class ValueScores:
    """One value over the repetitions that all values have: means over other data are no comparison."""

    value: Any
    seeds: list[int]
    lml: Estimate | None
    train_accuracy: Estimate | None
    test_accuracy: Estimate | None
    train_log_likelihood: Estimate | None
    test_log_likelihood: Estimate | None
    seconds: Estimate | None
    overfit: float | None  # by which share the loss is smaller on trained examples than on the next chunk
    lml_per_seed: dict[int, float]
    train_examples: int | None = None
    test_examples: int | None = None

    @classmethod
    def of(cls, value: Any, found: Mapping[int, dict[str, Any]], shared: set[int]) -> ValueScores:
        """Summarise runs by seed, over the seeds that are shared."""
        runs = [run for seed, run in found.items() if seed in shared]
        estimates = {
            name: Estimate.of(None if run[key] is None else factor * run[key] for run in runs)
            for name, (key, factor) in _MEASURES.items()
        }
        parts = [part for run in runs for part in run.get("subnetworks", ()) if part["next"] is not None]
        unseen = sum(part["next"]["nll"] for part in parts)  # of densities above 1 there is no share
        trained = [run["subnetworks"][-1]["examples"] for run in runs if run.get("subnetworks")]
        return cls(
            value=value,
            seeds=[run["seed"] for run in runs],
            **estimates,
            overfit=1 - float(sum(part["train"]["nll"] for part in parts)) / unseen if unseen > 0 else None,
            lml_per_seed={seed: run["lml"] for seed, run in found.items()},
            train_examples=min(trained, default=None),
            test_examples=min(filter(None, (run.get("test_examples") for run in runs)), default=None),
        )


@dataclass(frozen=True)
class Column:
    """A way to train and to score models, with all values."""

    name: str  # of the method, or ``laplace``: plain networks
    evidence: str  # which estimate ``lml`` is: a key of :data:`.EVIDENCES`
    rows: list[ValueScores]
    best: Any  # the value with the largest mean evidence; None without any
    best_per_seed: dict[int, Any]  # the same for each seed that has all values
    rank_correlation: dict[str, float | None]

    @classmethod
    def of(
        cls, name: str, evidence: str, config: TrainingConfig, runs: Mapping[str, Sequence[dict[str, Any]]]
    ) -> Column:
        """Summarise finished runs: ``runs`` are summaries by value, in the order of ``config.select``."""
        by_seed = [{run["seed"]: run for run in cell if run["lml"] is not None} for cell in runs.values()]
        shared = set.intersection(*(set(cell) for cell in by_seed if cell)) if any(by_seed) else set()
        pairs = zip(config.select.values, by_seed, strict=True)
        rows = [ValueScores.of(value, cell, shared) for value, cell in pairs]
        scored = [row for row in rows if row.lml is not None]
        seeds = range(config.seed, config.seed + config.select.seeds)
        complete = [seed for seed in seeds if all(seed in row.lml_per_seed for row in rows)]
        best = max(scored, key=lambda row: row.lml.mean).value if scored else None
        per_seed = {seed: max(rows, key=lambda row: row.lml_per_seed[seed]).value for seed in complete}
        ranks = {key: _rank_correlation(scored, key) for key in ("test_accuracy", "test_log_likelihood")}
        return cls(name, evidence, rows, best, per_seed, ranks)

    def score(self, name: str) -> Score:
        return EVIDENCES[self.evidence] if name == "lml" else score_of(name)


@dataclass(frozen=True)
class Selection:
    """What ``fedpart select`` found about a key of a configuration with a ``select`` section."""

    key: str
    columns: list[Column]  # networks of the configuration, and the plain ones if Laplace was asked for
    failures: list[tuple[str, str]]  # names of runs without a result, with the reason
    config: TrainingConfig

    @property
    def known(self) -> bool:
        return any(row.lml is not None for column in self.columns for row in column.rows)

    def table(self) -> RenderableType:
        shown: list[RenderableType] = []
        for column in self.columns:
            spread = any(row.lml is not None and row.lml.error is not None for row in column.rows)
            title, caption = f"{column.name}: {self.key}", CAPTION if spread else None
            head, rows = self.cells(column)
            bold = next((i for i, row in enumerate(column.rows) if row.value == column.best), None)
            shown.append(terminal_table(head, title, caption, padding=1, rows=rows, bold=bold))
            shown += map(Text, [*self.sentences(column), ""])
        return Group(*shown)

    def cells(self, column: Column) -> tuple[list[str], list[list[str]]]:
        """The table of a column for people: headings, and a row of texts per value, the best with a star."""
        head, rows = ["value"], [[f"{r.value}{' *' if r.value == column.best else ''}"] for r in column.rows]
        for name in SHOWN:
            score, part = column.score(name), name.partition("_")[0]
            words = score.word.replace(" ", LF) if name == "lml" else f"{part}{LF}{score.word}"
            head.append(f"{words}{LF}[{score.unit}]")
            for texts, row in zip(rows, column.rows, strict=True):
                held = score.places(getattr(row, f"{part}_examples", None))
                texts.append(score.cell(getattr(row, name), min(score.digits, held)))
        return head, rows

    def sentences(self, column: Column) -> list[str]:
        """What follows from a column: lines without a point at their end."""
        what = EVIDENCES[column.evidence].word
        if column.best is None:
            return [f"no {what} on a seed that all values have"]
        lines = [f"* {what} is largest at {column.best}"]
        if len(column.best_per_seed) > 1:
            agree = sum(value == column.best for value in column.best_per_seed.values())
            lines[0] += f", and on {agree} of {len(column.best_per_seed)} seeds"
        if any(len(row.lml_per_seed) > len(row.seeds) for row in column.rows):
            seeds = counted(max(len(row.seeds) for row in column.rows), "seed")
            lines.append(f"all numbers are of the {seeds} that every value with a result has")
        lines += self.warnings(column)
        known = {key: value for key, value in column.rank_correlation.items() if value is not None}
        ranks = [f"{value:.2f} with test {column.score(key).word}" for key, value in known.items()]
        return lines + ([f"rank correlation of {what} over values: {', '.join(ranks)}"] if ranks else [])

    def warnings(self, column: Column) -> list[str]:
        """Sentences on why the best value may not be the best there is."""
        warned, values = [], [row.value for row in column.rows]
        ends = (min(values), max(values)) if all(map(is_number, values)) else ()
        if len(values) > 1 and column.best in ends:
            side = "smallest" if column.best == ends[0] else "largest"
            warned.append(f"warning: {column.best} is the {side} value that was tried; add some beyond it")
        gaps = [row.overfit for row in column.rows if row.overfit is not None]
        if gaps and max(gaps) < OVERFIT:
            warned.append(
                "warning: no network has learned its own examples better than those that it has not seen: it "
                "has had no time to overfit, which the evidence is to find out; train for more iterations"
            )
        return warned

    @classmethod
    def load(cls, folder: Path) -> Selection:
        """What :meth:`write` has left in a folder, read back."""
        try:
            content = parsed((folder / SUMMARY).read_bytes())
            config = TrainingConfig.from_dict(content["config"])
            others = {config.method: content}
            others |= {k: part for k, part in content.items() if isinstance(part, dict) and "best_k" in part}
            named = ({"name": name, "best": part["best_k"], **part} for name, part in others.items())
            columns = TypeAdapter(list[Column]).validate_python([*named])
            failures = [(failure["run"], failure["error"]) for failure in content["failures"]]
        except (ValueError, KeyError, TypeError) as error:
            remedy = "run fedpart select with the same --out again"
            raise ConfigError(f"{folder / SUMMARY} cannot be read; {remedy}.") from error
        return cls(content["key"], columns, failures, config)

    def write(self, out: Path) -> None:
        """Write ``summary.json``, with what the first column says at the top."""
        first, *others = self.columns
        content = {
            "key": self.key,
            "values": self.config.select.values,
            "seeds": list(range(self.config.seed, self.config.seed + self.config.select.seeds)),
            **_plain(first),
            **{column.name: _plain(column) for column in others},
            "failures": [{"run": name, "error": error} for name, error in self.failures],
            "config": self.config.resolved(),
            "config_hash": self.config.hash(),
            "versions": versions(),
            "git_commit": git_commit(),
        }
        write_json(out / SUMMARY, finite(content))


def _plain(column: Column) -> dict[str, Any]:
    plain = asdict(column)
    return {"best_k": plain.pop("best")} | {key: content for key, content in plain.items() if key != "name"}


def _rank_correlation(rows: Sequence[ValueScores], key: str) -> float | None:
    pairs = [(row.lml.mean, getattr(row, key).mean) for row in rows if getattr(row, key) is not None]
    if len(pairs) < 3 or len({lml for lml, _ in pairs}) < 2 or len({score for _, score in pairs}) < 2:
        return None
    from scipy.stats import spearmanr  # of scikit-learn's

    return float(spearmanr(pairs).statistic)
