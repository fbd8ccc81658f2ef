"""Costs: searches and runs against each other, by what their users would deploy and what that has cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from simulations.errors import ConfigError
from simulations.results.curves import Band, band
from simulations.results.pictures.sweep_figures import plot_costs
from simulations.results.scores import BYTES, COUNT, DASH, SCORES, SHARE, Estimate
from simulations.results.search import Point, points
from simulations.results.tables import LF, markdown_table, number_columns, terminal_table, write_csv

_TOTALS = ("bytes", "rounds", "client_seconds", "examples")


@dataclass(frozen=True)
class Entry:
    """A kind of search, or of run; ``curves`` are of every seed its :func:`.points`."""

    label: str
    curves: Sequence[Sequence[Point]]

    @property
    def final(self) -> list[float]:
        """Of every seed, the accuracy on test data of what is deployed at the end."""
        return [curve[-1].accuracy or 0.0 for curve in self.curves]

    def total(self, of: str) -> list[float]:
        """Of every seed, what was spent at the end."""
        return [getattr(curve[-1].spent, of) for curve in self.curves]

    def within(self, of: str, most: float) -> Estimate | None:
        """The accuracy of what had been deployed with no more than this spent; None: a seed had nothing."""
        return Estimate.of(_last(curve, of, most) for curve in self.curves)

    def until(self, accuracy: float) -> Estimate | None:
        """Bytes by which that was deployed for the first time; None: a seed never had it."""
        return Estimate.of(
            next((float(p.spent.bytes) for p in curve if (p.accuracy or 0.0) >= accuracy), None)
            for curve in self.curves
        )

    def band(self) -> Band:
        """Mean and standard error of the accuracies over bytes, once every seed has something to deploy."""
        known = [[p.spent.bytes for p in curve if p.accuracy is not None] for curve in self.curves]
        first = max(places[0] for places in known)
        x = np.array(sorted({place for places in known for place in places if place >= first}), dtype=float)
        values = [[_last(curve, "bytes", place) for place in x] for curve in self.curves]
        return band([x] * len(values), [np.array(own, dtype=float) for own in values])


def _last(curve: Sequence[Point], of: str, most: float) -> float | None:
    found = [p.accuracy for p in curve if getattr(p.spent, of) <= most]
    return found[-1] if found else None


@dataclass(frozen=True)
class Costs:
    """The table of at least one entry; ``accuracy`` is that to be reached, a fraction."""

    entries: Sequence[Entry]
    accuracy: float

    def least(self, of: str) -> float:
        """What every seed of the entry that spends least has got by with."""
        return min(max(entry.total(of)) for entry in self.entries)

    def estimates(self, entry: Entry) -> dict[str, Estimate | None]:
        """An entry's row: accuracies are fractions."""
        return {
            "test_accuracy": Estimate.of(entry.final),
            **{of: Estimate.of(entry.total(of)) for of in _TOTALS},
            "at_equal_bytes": entry.within("bytes", self.least("bytes")),
            "at_equal_rounds": entry.within("rounds", self.least("rounds")),
            "bytes_to_accuracy": entry.until(self.accuracy),
        }

    def head(self) -> list[str]:
        """Of the columns, in the order of :meth:`estimates`."""
        accuracies = [f"{name}{LF}[%]" for name in ("test", "at equal bytes", "at equal rounds")]
        costs = ["bytes", "rounds", f"client{LF}seconds", "examples"]
        return ["method", accuracies[0], *costs, *accuracies[1:], f"bytes to{LF}{SHARE.text(self.accuracy)}"]

    def rows(self) -> list[list[str]]:
        return [self._row(entry) for entry in self.entries]

    def _row(self, entry: Entry) -> list[str]:
        row = [f"{entry.label} ({len(entry.curves)})"]
        for name, estimate in self.estimates(entry).items():
            if name.startswith("bytes"):
                row.append(BYTES.shown(estimate))
            elif name in _TOTALS:
                row.append(COUNT.shown(estimate) if estimate and estimate.mean else DASH)
            else:
                row.append(SCORES["accuracy"].cell(estimate))
        return row

    def notes(self) -> list[str]:
        return [
            "In brackets: how many seeds; with several, means and standard errors.",
            f"At equal bytes: what was deployed by {BYTES.text(self.least('bytes'))}; at equal rounds: by "
            f"{self.least('rounds'):,.0f} rounds; so much does the cheapest spend.",
            "A search's accuracy is that of its best finished trial on test data; a run's before its end is "
            "that on validation data.",
        ]

    def table(self) -> RenderableType:
        table = terminal_table(self.head(), "what is deployed, and what it has cost", rows=self.rows())
        table.columns[0].no_wrap = True
        return Group(table, *map(Text, self.notes()))

    def write(self, out: Path) -> list[Path]:
        """``costs.csv``, ``costs.md`` and ``costs.png``; the files."""
        out.mkdir(parents=True, exist_ok=True)
        lines = [
            {"method": entry.label, "seeds": len(entry.curves), **number_columns(self.estimates(entry))}
            for entry in self.entries
        ]
        write_csv(out / "costs.csv", lines)
        text = [*markdown_table(self.head(), self.rows()), "", *self.notes()]
        (out / "costs.md").write_text("\n".join(text) + "\n", encoding="utf-8")
        bands = {entry.label: entry.band() for entry in self.entries}
        return [out / "costs.csv", out / "costs.md", *plot_costs(bands, out)]


def read_costs(folders: Mapping[str, Sequence[Path]], accuracy: float | None = None) -> Costs:
    """The searches and runs in folders, a folder for each seed, by label, and the accuracy to be reached."""
    every = [folder.resolve() for own in folders.values() for folder in own]
    if twice := [folder for folder in every if every.count(folder) > 1]:
        raise ConfigError(f"{twice[0]} is named twice; name every folder once.")
    entries = [Entry(label, [points(folder) for folder in own]) for label, own in folders.items()]
    if accuracy is None:
        accuracy = min(min(entry.final) for entry in entries)
    return Costs(entries, accuracy)
