"""Parts of the page: an experiment's sections, with charts, pictures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simulations.results.pictures import figures as fig
from simulations.results.words import DASH

SCORES = ("validation", "test", "clients ", "at equal")  # columns with these beginnings are always shown


@dataclass(frozen=True)
class PageTable:
    """A table of texts."""

    caption: str  # what it is, above it
    head: list[str]
    rows: list[list[str]]  # a text for each heading; the first one names the row
    alike: str = ""  # a sentence on columns that were left out

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
            if len(rows) > 1 and len(texts) == 1 and texts != {DASH} and not head[i].startswith(SCORES):
                same.append(f"{' '.join(head[i].split())}: {' '.join(texts.pop().split())}")
            elif texts != {DASH}:
                shown.append(i)
        alike = f"In every row: {'; '.join(same)}." if same else ""
        return cls(caption, [head[i] for i in shown], [[row[i] for i in shown] for row in rows], alike)


@dataclass(frozen=True)
class Sheet:
    """Images in rows and columns, as a data URL."""

    title: str  # above them: what was done to them
    image: str
    columns: int


@dataclass(frozen=True)
class PageSection:
    """A part of the page under a heading of its own."""

    heading: str
    charts: Sequence[fig.Chart] = ()  # drawn side by side where there is room
    sheets: Mapping[str, Sequence[Sheet]] = field(default_factory=dict)  # in groups with a heading each
    tables: Sequence[PageTable] = ()
    text: str = ""  # above all that
    lines: Sequence[str] = ()  # a list below the text


@dataclass(frozen=True)
class Part:
    """What a page shows of one experiment."""

    name: str
    about: str  # what it is, in a line
    headline: str  # what came out, in a few sentences
    notes: Sequence[str]  # sentences on what is missing, or less comparable than it looks
    sections: Sequence[PageSection]  # those that there are data for
    settings: str  # the configuration, as YAML


def chart(title: str, figure: fig.Figure, note: str = "") -> fig.Chart:
    """A figure that is the only one of its thing."""
    return fig.Chart(title, {"": fig.svg(figure)}, note)


def sorted_out(found: Sequence[PageSection | str | None]) -> tuple[list[PageSection], list[str]]:
    """Sections, and the sentences on those that are missing."""
    sections = [one for one in found if isinstance(one, PageSection)]
    return sections, list(dict.fromkeys(one for one in found if isinstance(one, str)))
