"""Comparison: what was found out about several methods, as a table for terminal, Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from simulations.config.published import Published
from simulations.results.estimate import Estimate
from simulations.results.psi_parts import PsiParts, Quantity, between, several, spans
from simulations.results.scores import MethodScores
from simulations.results.tables import (
    CLIENTS,
    COLUMNS,
    DIFFERENCE,
    EQUAL_UPLOAD,
    HELD_OUT,
    LF,
    LML,
    markdown_table,
    number_columns,
    shown,
    terminal_row,
    terminal_table,
    with_error,
    write_csv,
    write_json,
)
from simulations.results.words import DASH, byte_text, counted, digits, percent

CAPTION = "mean \N{PLUS-MINUS SIGN} standard error over seeds"
LAST_TEN = "validation: mean of a run's last ten evaluations, at most half of them"
AGAINST = (
    "difference: ours minus the paper's (Mlodozeniec, Reisser and Louizos, ICLR 2023, Table 4; four seeds), "
    "in standard errors of the difference"
)


def caption_of(paper: bool) -> str:
    """What the numbers of a table are; ``paper``: with a column of differences from the paper's."""
    return "; ".join((CAPTION, *([AGAINST] if paper else []), LAST_TEN))


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
        published: the paper's numbers for the same cell; None if the configuration names none.
    """

    rows: list[MethodScores]
    failures: list[Failure]
    notes: list[str]
    metric: str
    rounds: int
    seeds: list[int]
    config: dict[str, Any]
    published: Published | None = None

    @property
    def caption(self) -> str:
        """What the numbers of the table are."""
        return caption_of(paper=self.published is not None)

    @property
    def remarks(self) -> list[str]:
        """Sentences: the notes, which times to doubt, and how the paper's runs were of another length."""
        found = list(self.notes)
        shared = max((row.runs_at_a_time for row in self.rows), default=1)
        if shared > 1:
            found.append(
                f"Times with a star were measured while {shared} runs shared the machine; for times to "
                f"compare, run with --jobs 1."
            )
        if self.published is not None and self.published.rounds != self.rounds:
            found.append(
                f"The paper trains for {self.published.rounds:,} rounds, these runs for {self.rounds:,}."
            )
        return found

    def title(self) -> str:
        """What the rows have in common."""
        counts = f"{counted(len(self.seeds), 'seed')}, {counted(self.rounds, 'round')}"
        shared = "data and clients" if self.notes else "data, clients and cohorts"
        return f"{counts}; the same {shared}"

    def cells(self, paper: bool = False) -> tuple[list[str], list[list[str]]]:
        """The table for people: headings, and a row of texts per method; a text may have several lines.

        Args:
            paper: with the columns for the paper's numbers even if there are none.
        """
        rows = [self._texts(row, paper or self.published is not None) for row in self.rows]
        hidden = self._unknown()
        known = [name for name in rows[0] if not name.startswith(hidden)]
        return known, [[row[name] for name in known] for row in rows]

    def _unknown(self) -> tuple[str, ...]:
        """How those headings begin whose scores no row has; which there are depends on who evaluates."""
        clients, lml = (any(getattr(row, key) for row in self.rows) for key in ("clients", "lml"))
        central = any(row.validation or row.test for row in self.rows) or not (clients or lml)
        known = {("clients ",): clients, (LML,): lml, ("validation\n", "test\n", "at equal\n"): central}
        return tuple(heading for headings, there in known.items() if not there for heading in headings)

    def _texts(self, row: MethodScores, paper: bool) -> dict[str, str]:
        accuracy, missing = self.metric == "val_accuracy", len(row.seeds) < len(self.seeds)
        what, unit, factor, more = ("accuracy", "[%]", 100, 0) if accuracy else ("loss", "[nats]", 1, 2)
        validated, tested = (more + digits(n) for n in (row.validation_examples, row.test_examples))
        texts = {
            "method": f"{row.method}\n({len(row.seeds)}/{len(self.seeds)} seeds)" if missing else row.method,
            f"validation\n{what} {unit}": with_error(row.validation, factor, validated),
        }
        if paper:
            difference = self.difference(row)
            texts[f"paper\n{what} {unit}"] = with_error(self.theirs(row.method), 100, 1)
            texts[DIFFERENCE] = DASH if difference is None else f"{difference:+.1f}"
        return texts | {
            EQUAL_UPLOAD[unit]: with_error(row.equal_upload, factor, validated),
            f"test\n{what} {unit}": with_error(row.test, factor, tested),
            CLIENTS[unit]: _with_worst(row, factor, 2 + more),
            LML: with_error(row.lml, 1, 3),
            HELD_OUT: shown(row.held_out, percent),
            "upload [%\nof FedAvg]": shown(row.upload_ratio, percent),
            "upload": shown(row.upload_bytes, byte_text),
            "download": shown(row.download_bytes, byte_text),
            "seconds": shown(row.seconds, "{:.1f}".format) + row.star,
            "learned": "\n".join(_learned(row)) or DASH,
        }

    def theirs(self, method: str) -> Estimate | None:
        """What the paper reports for a method, a fraction."""
        if self.published is None or self.metric != "val_accuracy":
            return None
        found = self.published.accuracy.get(method)
        return None if found is None else Estimate(**found)

    def difference(self, row: MethodScores) -> float | None:
        """A row's distance from the paper, see :meth:`.Estimate.difference`."""
        theirs = self.theirs(row.method)
        return None if row.validation is None or theirs is None else row.validation.difference(theirs)

    def table(self) -> RenderableType:
        """For the terminal, 80 columns wide: the numbers, and below them what was learned."""
        head, rows = self.cells()
        table = terminal_table(terminal_row(head, head), self.title(), self.caption)
        for row in rows:
            table.add_row(*map(Text, terminal_row(head, row)))
        learned = [
            f"{row[0].replace(LF, ' ')} learned: {row[-1].replace(LF, '; ')}"
            for row in rows
            if row[-1] != DASH
        ]
        held_out = [
            f"{row.method} held out {100 * row.held_out.mean:.1f}% of the clients' examples."
            for row in self.rows
            if row.held_out is not None and row.held_out.mean > 0
        ]
        return Group(table, *map(Text, [*learned, *held_out]))

    def markdown(self, pictures: Sequence[Path] = ()) -> str:
        """A page with the table, what failed, and the pictures (in the page's folder)."""
        lines = ["# Comparison", "", f"{self.title()}; {self.caption}. {COLUMNS}.", ""]
        lines += markdown_table(*self.cells())
        for heading, found in (("Notes", self.remarks), ("Failed", self.failed())):
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
        write_json(out / "comparison.json", asdict(self))
        write_csv(out / "comparison.csv", self.flat())

    def flat(self) -> list[dict[str, Any]]:
        """A row of numbers per method, by column: fractions, bytes, seconds, psi in physical units."""
        return [self._flat(row) for row in self.rows]

    def _flat(self, row: MethodScores) -> dict[str, Any]:
        paper = {} if self.published is None else {"paper": self.theirs(row.method)}
        clients = self.metric.replace("val_", "client_")
        without_data = {
            f"{clients}_last10": row.clients,
            f"{clients}_worst_decile_last10": row.clients_worst,
            "lml_last10": row.lml,
        }
        scores = {
            f"{self.metric}_last10": row.validation,
            **paper,
            f"{self.metric}_last10 at equal upload": row.equal_upload,
            self.metric.replace("val_", "test_"): row.test,
            **{name: score for name, score in without_data.items() if score is not None},
            "held_out_share": row.held_out,
            "upload_ratio": row.upload_ratio,
            "upload_bytes": row.upload_bytes,
            "download_bytes": row.download_bytes,
            "seconds": row.seconds,
            **row.psi,
        }
        flat: dict[str, Any] = {"method": row.method, "seeds": len(row.seeds)}
        if paper:
            difference = self.difference(row)
            flat["difference from paper [standard errors]"] = "" if difference is None else difference
        chosen = {key: "; ".join(_single(values)) for key, values in row.chosen.items()}
        return flat | number_columns(scores) | chosen


def _with_worst(row: MethodScores, factor: float, digits: int) -> str:
    """What clients found, and below it the worst tenth of them."""
    if row.clients is None:
        return DASH
    worst = "" if row.clients_worst is None else f"\n({row.clients_worst.mean * factor:.{digits}f})"
    return with_error(row.clients, factor, digits) + worst


def _learned(row: MethodScores) -> list[str]:
    """All that has moved, a line of each kind: rotation and other ranges, dropout rates, the rest."""
    psi, parts = row.psi, PsiParts.of(row.psi)
    means = {name: score.mean for name, score in psi.items()}
    lines = [f"rotation {between(means, names)}" for names in parts.angles]
    if others := spans(means, parts.ranges):
        lines.append(", ".join(others))
    if parts.rates:
        lines.append(f"dropout {', '.join(f'{psi[name].mean:.1f}' for name in parts.rates)} %")
    grid = {f"dropout of {Quantity.parse(name).module}": _single(own) for name, own in row.chosen.items()}
    if len({tuple(values) for values in grid.values()}) == 1:
        grid = {"dropout": next(iter(grid.values()))}
    for name, values in grid.items():
        lines.append(f"{name} {', '.join(values)} % (chosen{', by seed' if len(values) > 1 else ''})")
    chances = parts.probabilities if parts.rates or grid else []  # what rates are chosen by
    if rest := several({name: means[name] for name in (*parts.keeps, *parts.rest) if name not in chances}):
        lines.append(rest)
    return lines


def _single(values: Sequence[float]) -> list[str]:
    """A text per seed, or one if the seeds agree."""
    texts = [f"{value:.4g}" for value in values]
    return texts if len(set(texts)) > 1 else texts[:1]
