"""Tables of the page: columns that say the same in every row are left out of them, and told in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulations.results.words import DASH

SCORES = ("validation", "test", "clients ", "at equal")  # columns with these beginnings are always shown


@dataclass(frozen=True)
class PageTable:
    """A table of texts.

    Attributes:
        caption: what it is, above it.
        head, rows: headings, and a text for each in every row; the first one names the row.
        alike: a sentence on columns that were left out; empty without any.
    """

    caption: str
    head: list[str]
    rows: list[list[str]]
    alike: str = ""

    @classmethod
    def of(
        cls, caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1
    ) -> PageTable:
        """Without what nobody knows and, of two rows or more, without what is the same in all of them.

        The first ``names`` columns, and those of scores, stay as they are.
        """
        shown, same = list(range(min(names, len(head)))), []
        for i in range(names, len(head)):
            texts = {row[i] for row in rows}
            if texts == {DASH}:
                continue
            if len(rows) > 1 and len(texts) == 1 and not head[i].startswith(SCORES):
                same.append(f"{' '.join(head[i].split())}: {' '.join(texts.pop().split())}")
                continue
            shown.append(i)
        alike = f"In every row: {'; '.join(same)}." if same else ""
        return cls(caption, [head[i] for i in shown], [[row[i] for i in shown] for row in rows], alike)
