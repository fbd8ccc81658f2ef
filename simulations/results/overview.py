"""Overview: several comparisons in one table, as the paper's Table 4 has several data sets and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from simulations.results.comparison import Comparison, caption_of
from simulations.results.tables import (
    COLUMNS,
    markdown_table,
    terminal_row,
    terminal_table,
    write_csv,
    write_json,
)

Rows = list[tuple[str, list[str]]]  # the comparison's name, and a row of it


@dataclass(frozen=True)
class Overview:
    """What ``fedpart compare`` found out with several configurations: by name, which is the folder's."""

    comparisons: Mapping[str, Comparison]

    @property
    def caption(self) -> str:
        """What the numbers of the table are."""
        return caption_of(self._paper)

    @property
    def _paper(self) -> bool:
        return any(comparison.published is not None for comparison in self.comparisons.values())

    def tables(self) -> list[tuple[list[str], Rows]]:
        """Headings, and rows with the name of their comparison; a table for each metric."""
        found: dict[tuple[str, ...], Rows] = {}
        for name, comparison in self.comparisons.items():
            head, rows = comparison.cells(self._paper)
            found.setdefault(tuple(head), []).extend((name, row) for row in rows)
        return [(list(head), rows) for head, rows in found.items()]

    def table(self) -> RenderableType:
        """For the terminal, 80 columns wide."""
        shown, title = [], f"{len(self.comparisons)} comparisons"
        for head, rows in self.tables():
            table = terminal_table(terminal_row(head, head), title, self.caption)
            for name, own in groupby(rows, key=itemgetter(0)):
                table.add_section()
                table.add_row(Text(name, style="bold"))
                for _, row in own:
                    table.add_row(*map(Text, terminal_row(head, row)))
            shown.append(table)
        return Group(*shown)

    def markdown(self) -> str:
        """A page with the table, the pages of the comparisons, and what failed."""
        lines = ["# Comparisons", "", f"{self.caption}. {COLUMNS}."]
        for head, rows in self.tables():
            named = [[name, *row] for name, row in rows]
            lines += ["", *markdown_table(["experiment", *head], named)]
        lines.append("")
        for name, comparison in self.comparisons.items():
            lines.append(f"- [{name}]({name}/comparison.md): {comparison.title()}")
            lines += [f"  - {text}" for text in (*comparison.remarks, *comparison.failed())]
        return "\n".join(lines) + "\n"

    def write(self, out: Path) -> None:
        """Write ``comparison.md``, and ``comparison.csv`` and ``.json`` with fractions and bytes."""
        (out / "comparison.md").write_text(self.markdown(), encoding="utf-8")
        write_json(out / "comparison.json", {"comparisons": list(self.comparisons)})
        rows = [
            {"experiment": name, **row}
            for name, comparison in self.comparisons.items()
            for row in comparison.flat()
        ]
        write_csv(out / "comparison.csv", rows)
