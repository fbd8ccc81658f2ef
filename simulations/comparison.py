"""Comparison: what was found out about several methods, as a table for terminal, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulations.curves import byte_text
from simulations.psi_parts import PsiParts
from simulations.scores import MethodScores, Score

DASH, DEGREES, LF = "\N{EM DASH}", "\N{DEGREE SIGN}", "\n"
CAPTION = "mean \N{PLUS-MINUS SIGN} standard error over seeds"


@dataclass(frozen=True)
class Failure:
    """A cell that ended with an error: the sentence for people, the traceback for developers."""

    method: str
    seed: int
    error: str
    traceback: str = ""


@dataclass(frozen=True)
class Comparison:
    """What ``fedpart compare`` found.

    Attributes:
        rows: one per method, in the order asked for.
        failures: cells without a result.
        notes: sentences about what makes the rows less comparable than they look.
        metric: ``val_accuracy``, or ``val_nll`` where there is no accuracy.
        rounds, seeds: of every method, as asked for.
        config: the configuration that all cells share.
    """

    rows: list[MethodScores]
    failures: list[Failure]
    notes: list[str]
    metric: str
    rounds: int
    seeds: list[int]
    config: dict[str, Any]

    def title(self) -> str:
        """What the rows have in common."""
        counts = f"{_count(len(self.seeds), 'seed')}, {_count(self.rounds, 'round')}"
        shared = "data and clients" if self.notes else "data, clients and cohorts"
        return f"{counts}; the same {shared}"

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The table for people: headings, and a row of texts per method; a text may have several lines."""
        what, unit = ("accuracy", "[%]") if self.metric == "val_accuracy" else ("loss", "[nats]")
        factor, digits = (100.0, 2) if self.metric == "val_accuracy" else (1.0, 4)
        head = ["method", f"validation\n{what} {unit}", f"test\n{what} {unit}", "upload [%\nof FedAvg]"]
        head += ["upload", "download", "seconds", "learned"]
        rows = []
        for row in self.rows:
            missing = len(row.seeds) < len(self.seeds)
            rows.append(
                [
                    f"{row.method}\n({len(row.seeds)}/{len(self.seeds)} seeds)" if missing else row.method,
                    DASH if row.validation is None else row.validation.text(factor, digits),
                    DASH if row.test is None else row.test.text(factor, digits),
                    DASH if row.upload_ratio is None else f"{100 * row.upload_ratio.mean:.1f}",
                    DASH if row.upload_bytes is None else byte_text(row.upload_bytes.mean),
                    DASH if row.download_bytes is None else byte_text(row.download_bytes.mean),
                    DASH if row.seconds is None else f"{row.seconds.mean:.1f}",
                    "\n".join(_psi(row.psi)) or DASH,
                ]
            )
        return head, rows

    def table(self) -> RenderableType:
        """For the terminal, 80 columns wide: the numbers, and below them what was learned."""
        head, rows = self.cells()
        table = Table(title=self.title(), title_style="bold", caption=CAPTION, box=box.SIMPLE_HEAD)
        table.pad_edge, table.padding = False, 0
        for name in head[:-1]:
            table.add_column(name, justify="left" if name == "method" else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row[:-1]))
        learned = [
            f"{row[0].replace(LF, ' ')} learned: {row[-1].replace(LF, '; ')}"
            for row in rows
            if row[-1] != DASH
        ]
        return Group(table, *map(Text, learned))

    def markdown(self, pictures: Sequence[Path] = ()) -> str:
        """A page with the table, what failed, and the pictures (in the page's folder)."""
        head, rows = self.cells()
        lines = ["# Comparison", "", f"{self.title()}; {CAPTION}.", ""]
        for row in (head, ["---"] * len(head), *rows):
            escaped = [cell.replace("|", "\\|").replace(LF, " " if row is head else "<br>") for cell in row]
            lines.append(f"| {' | '.join(escaped)} |")
        for heading, found in (("Notes", self.notes), ("Failed", self.failed())):
            lines += ["", f"## {heading}", "", *(f"- {line}" for line in found)] if found else []
        for picture in pictures:
            lines += ["", f"![{picture.stem.replace('_', ' against ')}]({picture.name})"]
        return "\n".join(lines) + "\n"

    def failed(self) -> list[str]:
        """A sentence per cause, naming its cells."""
        causes: dict[str, list[str]] = {}
        for failure in self.failures:
            causes.setdefault(failure.error, []).append(f"{failure.method} seed {failure.seed}")
        return [f"{', '.join(cells)}: {error}" for error, cells in causes.items()]

    def write(self, out: Path, pictures: Sequence[Path] = ()) -> None:
        """Write ``comparison.md``, and ``comparison.csv`` and ``.json`` with fractions and bytes."""
        (out / "comparison.md").write_text(self.markdown(pictures), encoding="utf-8")
        text = json.dumps(asdict(self), indent=2, allow_nan=False, ensure_ascii=False)
        (out / "comparison.json").write_text(text + "\n", encoding="utf-8")
        flat = [self._flat(row) for row in self.rows]
        columns = list(dict.fromkeys(key for row in flat for key in row))
        with (out / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(flat)

    def _flat(self, row: MethodScores) -> dict[str, Any]:
        scores = {
            f"{self.metric}_last10": row.validation,
            self.metric.replace("val_", "test_"): row.test,
            "upload_ratio": row.upload_ratio,
            "upload_bytes": row.upload_bytes,
            "download_bytes": row.download_bytes,
            "seconds": row.seconds,
            **row.psi,
        }
        flat: dict[str, Any] = {"method": row.method, "seeds": len(row.seeds)}
        for key, score in scores.items():
            flat[key] = "" if score is None else score.mean
            flat[f"{key} standard_error"] = "" if score is None or score.error is None else score.error
        return flat


def _psi(psi: Mapping[str, Score]) -> list[str]:
    """Rotation range and dropout rates; where there are neither, the first three others."""
    parts = PsiParts.of(psi)
    lines = []
    for names in parts.angles:
        low, high = (psi[name].mean for name in names)  # sorted in every run
        lines.append(f"rotation {low:.1f}{DEGREES} to {high:.1f}{DEGREES}")
    if parts.rates:
        lines.append(f"dropout {', '.join(f'{psi[name].mean:.1f}' for name in parts.rates)} %")
    return lines or [f"{name} {score.mean:.4g}" for name, score in list(psi.items())[:3]]


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
