"""Overview: several comparisons in one table, as the paper's Table 4 has; and the headline of one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from simulations.results.comparison import COLUMNS, Comparison, caption_of, terminal_columns
from simulations.results.scores import counted, with_unit
from simulations.results.tables import markdown_table, terminal_table, write_csv, write_json

_WHOSE = {"validation": "validation", "clients": "clients' own", "test": "test"}  # the first that there is


@dataclass(frozen=True)
class Overview:
    """What ``fedpart compare`` found out with several configurations: by name, which is the folder's."""

    comparisons: Mapping[str, Comparison]

    @property
    def caption(self) -> str:
        return caption_of(self._paper)

    @property
    def _paper(self) -> bool:
        return any(comparison.published is not None for comparison in self.comparisons.values())

    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Headings, and rows that begin with the name of their comparison; a table for each metric."""
        heads: dict[tuple[str, ...], list[list[str]]] = {}
        for name, comparison in self.comparisons.items():
            head, rows = comparison.cells(self._paper)
            heads.setdefault(("experiment", *head), []).extend([name, *row] for row in rows)
        return [(list(head), rows) for head, rows in heads.items()]

    def table(self) -> RenderableType:
        shown = []
        for head, rows in self.tables():
            head, rows = terminal_columns(head, rows)
            table = terminal_table(head[1:], f"{len(self.comparisons)} comparisons", self.caption)
            for name, own in groupby(rows, key=itemgetter(0)):
                table.add_section()
                table.add_row(Text(name, style="bold"))
                for _, *row in own:
                    table.add_row(*map(Text, row))
            shown.append(table)
        return Group(*shown)

    def write(self, out: Path) -> None:
        """Write ``comparison.md``, and ``comparison.csv`` and ``.json`` with fractions and bytes."""
        lines = ["# Comparisons", "", f"{self.caption}. {COLUMNS}."]
        for head, rows in self.tables():
            lines += ["", *markdown_table(head, rows)]
        lines.append("")
        for name, each in self.comparisons.items():
            lines.append(f"- [{name}]({name}/comparison.md): {each.title()}")
            lines += [f"  - {text}" for text in (*each.remarks, *each.failed())]
        (out / "comparison.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        write_json(out / "comparison.json", {"comparisons": list(self.comparisons)})
        every = self.comparisons.items()
        write_csv(
            out / "comparison.csv",
            [{"experiment": name, **row} for name, each in every for row in each.flat()],
        )


def headline(comparison: Comparison, classes: int | None = None) -> str:
    """Sentences on the best method, whether bands over seeds overlap, and chance among ``classes``."""
    rows, score = [row for row in comparison.rows if row.seeds], comparison.score
    if not rows:
        return "No run is finished yet."
    if (name := next((name for name in _WHOSE if any(row[name] for row in rows)), None)) is None:
        return "No finished run has a score."
    ranked = [(row[name], row) for row in rows if row[name] is not None]
    ranked.sort(key=lambda one: one[0].mean, reverse=score.larger)
    places = {row.method: score.places(getattr(row, f"{name}_examples", None)) for row in rows}
    texts = {row.method: with_unit(score.cell(own, places[row.method]), score.unit) for own, row in ranked}
    what, ((own, best), *others) = f"{_WHOSE[name]} {score.word}", ranked
    if others:
        other, second = others[0][0], others[0][1].method
        lead = f"{score.factor * abs(own.mean - other.mean):.{places[best.method]}f}"
        place = f"{lead} {'points ahead of' if score.larger else 'nats below'} {second} ({texts[second]})"
        sentences = [f"{best.method} leads with a {what} of {texts[best.method]}, {place}."]
        if float(lead) == 0:
            both = f"{texts[best.method]} and {texts[second]}"
            sentences = [f"{best.method} and {second} are level, with a {what} of {both}."]
        bands = "Their bands (mean \N{PLUS-MINUS SIGN} standard error over seeds)"
        if own.error is None or other.error is None:
            sentences.append("With one seed there is no telling whether that is luck.")
        elif abs(own.mean - other.mean) > own.error + other.error:
            sentences.append(f"{bands} do not overlap.")
        else:
            sentences.append(f"{bands} overlap: more seeds may turn that round.")
    else:
        seeds = counted(len(best.seeds), "seed")
        sentences = [f"{best.method} has a {what} of {texts[best.method]} ({seeds})."]
    if classes is not None and classes > 1:
        chance = 1 / classes if score.larger else math.log(classes)
        level = f"{100 * chance:.3g}%" if score.larger else f"{chance:.2f} nats"
        sentences.append(f"Guessing among {classes} classes gives {level}.")
        sign = 1 if score.larger else -1
        worse = [row.method for own, row in ranked if sign * (own.mean - chance) <= (own.error or 0.0)]
        if len(worse) == len(ranked):
            sentences.append("No method is better than that.")
        elif worse:
            sentences.append(f"Not better than that: {', '.join(worse)}.")
    if any(len(row.seeds) < len(comparison.seeds) for row in comparison.rows):
        sentences.insert(0, "Some runs are not finished; so far:")
    return " ".join(sentences)
