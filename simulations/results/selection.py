"""Selection: what was found out about the values of a key, for the terminal, CSV and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from fedpart.loggers.lines import finite
from fedpart.training.files import parsed
from simulations.config.load import EVIDENCE_NAMES, ConfigError, TrainingConfig
from simulations.folders.run_directory import SUMMARY
from simulations.folders.versions import git_commit, versions
from simulations.results.comparison import CAPTION
from simulations.results.estimate import Estimate
from simulations.results.tables import LF, number_columns, terminal_table, with_error, write_csv, write_json
from simulations.results.words import counted, digits

# What is kept of each run: name here -> key in its summary.json and the factor of that; and on the terminal
# the heading (none: it is not shown), factor and digits.
_MEASURES = {
    "lml": ("lml", 1.0, "{evidence}\n[nats]", 1.0, 1),
    "train_accuracy": ("train_accuracy", 1.0, "train\nacc. [%]", 100.0, 1),
    "test_accuracy": ("test_accuracy", 1.0, "test\nacc. [%]", 100.0, 1),
    "train_log_likelihood": ("train_nll", -1.0, "train log-\nlik. [nats]", 1.0, 3),
    "test_log_likelihood": ("test_nll", -1.0, "test log-\nlik. [nats]", 1.0, 3),
    "seconds": ("seconds", 1.0, None, 1.0, 0),
}

OVERFIT = 0.05  # share of a loss: below it, networks are as good on what they have seen as on other examples


@dataclass(frozen=True)
class ValueScores:
    """One value over the repetitions.

    Attributes:
        value: of the key.
        seeds: those that the scores are over: every value that has evidence at all has it there, for means
            over other data are no comparison.
        lml: evidence, nats; accuracies are fractions, log-likelihoods mean nats per example.
        overfit: by how much smaller the loss of subnetworks is on examples that they were trained on than on
            the next chunk, as a share of the latter, the mean; None without a next chunk.
        lml_per_seed: of all seeds that have it.
        train_examples, test_examples: that were scored, on the seed with the fewest; None in folders of
            earlier versions.
    """

    value: Any
    seeds: list[int]
    lml: Estimate | None
    train_accuracy: Estimate | None
    test_accuracy: Estimate | None
    train_log_likelihood: Estimate | None
    test_log_likelihood: Estimate | None
    seconds: Estimate | None
    overfit: float | None
    lml_per_seed: dict[int, float]
    train_examples: int | None
    test_examples: int | None


@dataclass(frozen=True)
class Column:
    """A way to train and to score models, with all values.

    Attributes:
        name: of the method, or ``laplace``: plain networks.
        evidence: which estimate ``lml`` is: a key of :data:`.EVIDENCE_NAMES`.
        best: the value with the largest mean evidence; None without any.
        best_per_seed: the same for each seed that has all values.
        rank_correlation: Spearman's, over values, of the mean evidence with the mean test accuracy and
            log-likelihood; None where it is not defined.
    """

    name: str
    evidence: str
    rows: list[ValueScores]
    best: Any
    best_per_seed: dict[int, Any]
    rank_correlation: dict[str, float | None]

    @classmethod
    def of(
        cls, name: str, evidence: str, config: TrainingConfig, runs: Mapping[str, Sequence[dict[str, Any]]]
    ) -> Column:
        """Summarise finished runs: ``runs`` are summaries by value, in the order of ``config.select``."""
        assert config.select is not None
        found = [{run["seed"]: run for run in own if run["lml"] is not None} for own in runs.values()]
        shared = set.intersection(*(set(own) for own in found if own)) if any(found) else set()
        rows = [_row(value, own, shared) for value, own in zip(config.select.values, found, strict=True)]
        scored = [row for row in rows if row.lml is not None]
        seeds = range(config.seed, config.seed + config.select.seeds)
        complete = [seed for seed in seeds if all(seed in row.lml_per_seed for row in rows)]
        best = max(scored, key=lambda row: row.lml.mean).value if scored else None
        per_seed = {seed: max(rows, key=lambda row: row.lml_per_seed[seed]).value for seed in complete}
        ranks = {key: _rank_correlation(scored, key) for key in ("test_accuracy", "test_log_likelihood")}
        return cls(name, evidence, rows, best, per_seed, ranks)


@dataclass(frozen=True)
class Selection:
    """What ``fedpart select`` found about a key of a configuration with a ``select`` section."""

    key: str
    columns: list[Column]  # networks of the configuration, and the plain ones if Laplace was asked for
    failures: list[tuple[str, str]]  # names of runs without a result, with the reason
    config: TrainingConfig

    def table(self) -> RenderableType:
        """For the terminal, 80 columns wide."""
        return Group(*(self._table(column) for column in self.columns))

    def _table(self, column: Column) -> RenderableType:
        spread = any(row.lml is not None and row.lml.error is not None for row in column.rows)
        head, rows = self.cells(column)
        table = terminal_table(head, f"{column.name}: {self.key}", CAPTION if spread else None, padding=1)
        for row, texts in zip(column.rows, rows, strict=True):
            table.add_row(*map(Text, texts), style="bold" if row.value == column.best else "")
        return Group(table, *map(Text, self.sentences(column)), Text(""))

    def cells(self, column: Column) -> tuple[list[str], list[list[str]]]:
        """The table of a column for people: headings, and a row of texts per value, the best with a star."""
        what = EVIDENCE_NAMES[column.evidence].replace(" ", LF)
        shown = {heading: (name, *form) for name, (_, _, heading, *form) in _MEASURES.items() if heading}
        rows = []
        for row in column.rows:
            cells = [
                with_error(getattr(row, name), factor, min(most, _digits(name, row)))
                for name, factor, most in shown.values()
            ]
            rows.append([f"{row.value}{' *' if row.value == column.best else ''}", *cells])
        return ["value", *(heading.format(evidence=what) for heading in shown)], rows

    def sentences(self, column: Column) -> list[str]:
        """What follows from a column: lines without a point at their end."""
        what = EVIDENCE_NAMES[column.evidence]
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
        ranks = [
            f"{value:.2f} with {key.replace('_', ' ').replace('log ', 'log-')}"
            for key, value in column.rank_correlation.items()
            if value is not None
        ]
        if ranks:
            lines.append(f"rank correlation of {what} over values: {', '.join(ranks)}")
        return lines

    @classmethod
    def load(cls, folder: Path) -> Selection:
        """What :meth:`write` has left in a folder, read back.

        Raises:
            ConfigError: its ``summary.json`` is that of an earlier version or damaged.
        """
        try:
            content = parsed((folder / SUMMARY).read_bytes())
            config = TrainingConfig.from_dict(content["config"])
            named = {config.method: content} | {
                key: own for key, own in content.items() if isinstance(own, dict) and "best_k" in own
            }
            columns = [_column(name, own) for name, own in named.items()]
            failures = [(failure["run"], failure["error"]) for failure in content["failures"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{folder / SUMMARY} cannot be read; run fedpart select with the same --out again."
            ) from error
        return cls(content["key"], columns, failures, config)

    def warnings(self, column: Column) -> list[str]:
        """Sentences on why the best value may not be the best there is."""
        found, numbers = [], [row.value for row in column.rows]
        ordered = all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)
        ends = (min(numbers), max(numbers)) if ordered else ()
        if len(numbers) > 1 and column.best in ends:
            side = "smallest" if column.best == ends[0] else "largest"
            found.append(f"warning: {column.best} is the {side} value that was tried; add some beyond it")
        gaps = [row.overfit for row in column.rows if row.overfit is not None]
        if gaps and max(gaps) < OVERFIT:
            found.append(
                "warning: no network has learned its own examples better than those that it has not seen: it "
                "has had no time to overfit, which the evidence is to find out; train for more iterations"
            )
        return found

    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` holds: ``best_k`` and the rest of the first column at the top."""
        first, *others = self.columns
        assert self.config.select is not None
        return {
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

    def write(self, out: Path) -> None:
        """Write ``summary.json`` and ``select.csv``."""
        write_json(out / "summary.json", finite(self.summary()))
        rows = [
            {"method": column.name, "value": row.value, "seeds": len(row.seeds)}
            | number_columns({key: getattr(row, key) for key in _MEASURES})
            for column in self.columns
            for row in column.rows
        ]
        write_csv(out / "select.csv", rows)


def _digits(name: str, row: ValueScores) -> int:
    """That the data hold, see :func:`.digits`; of a log-likelihood two more."""
    examples = {"train": row.train_examples, "test": row.test_examples}.get(name.partition("_")[0])
    return digits(examples) + 2 * (not name.endswith("accuracy"))


def _column(name: str, content: Mapping[str, Any]) -> Column:
    """A column from its part of ``summary.json``."""
    rows = []
    for row in content["rows"]:
        scores = {key: None if row[key] is None else Estimate(**row[key]) for key in _MEASURES}
        per_seed = {int(seed): lml for seed, lml in row["lml_per_seed"].items()}
        own = {key: row[key] for key in ("value", "seeds", "overfit")}
        own |= {key: row.get(key) for key in ("train_examples", "test_examples")}
        rows.append(ValueScores(lml_per_seed=per_seed, **own, **scores))
    best = {int(seed): value for seed, value in content["best_per_seed"].items()}
    return Column(name, content["evidence"], rows, content["best_k"], best, content["rank_correlation"])


def _row(value: Any, found: Mapping[int, dict[str, Any]], shared: set[int]) -> ValueScores:
    runs = [run for seed, run in found.items() if seed in shared]
    scores = {
        name: Estimate.of(None if run[key] is None else factor * run[key] for run in runs)
        for name, (key, factor, *_) in _MEASURES.items()
    }
    per_seed = {seed: run["lml"] for seed, run in found.items()}
    seeds = [run["seed"] for run in runs]
    trained = [run["subnetworks"][-1]["examples"] for run in runs if run.get("subnetworks")]
    tested = [run["test_examples"] for run in runs if run.get("test_examples")]
    return ValueScores(
        value=value,
        seeds=seeds,
        overfit=_overfit(runs),
        lml_per_seed=per_seed,
        train_examples=min(trained, default=None),
        test_examples=min(tested, default=None),
        **scores,
    )


def _overfit(runs: Sequence[dict[str, Any]]) -> float | None:
    parts = [part for run in runs for part in run.get("subnetworks", ()) if part["next"] is not None]
    unseen = sum(part["next"]["nll"] for part in parts)
    if not unseen > 0:  # none, or densities above 1, of which there is no share
        return None
    return 1 - float(sum(part["train"]["nll"] for part in parts)) / unseen


def _rank_correlation(rows: Sequence[ValueScores], key: str) -> float | None:
    pairs = [(row.lml.mean, getattr(row, key).mean) for row in rows if getattr(row, key) is not None]
    if len({lml for lml, _ in pairs}) < 2 or len({score for _, score in pairs}) < 2:
        return None
    return float(np.corrcoef([_ranks(values) for values in zip(*pairs, strict=True)])[0, 1])


def _ranks(values: Sequence[float]) -> list[float]:
    """Places in ascending order; those of equal values are their mean."""
    ordered = np.sort(values)
    return [float(np.flatnonzero(ordered == value).mean()) for value in values]


def _plain(column: Column) -> dict[str, Any]:
    return {
        "evidence": column.evidence,
        "best_k": column.best,
        "best_per_seed": column.best_per_seed,
        "rank_correlation": column.rank_correlation,
        "rows": [asdict(row) for row in column.rows],
    }
