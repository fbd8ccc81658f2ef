"""Parts of the page: a section with its charts, pictures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simulations.pictures.figures import Chart
from simulations.report.tables import PageTable


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
    charts: Sequence[Chart] = ()  # drawn side by side where there is room
    sheets: Mapping[str, Sequence[Sheet]] = field(default_factory=dict)  # in groups with a heading each
    tables: Sequence[PageTable] = ()
    text: str = ""  # above all that
    lines: Sequence[str] = ()  # a list below the text


@dataclass(frozen=True)
class Part:
    """What a page shows of one experiment.

    Attributes:
        name, about: of the experiment, and what it is, in a line.
        headline: what came out, in a few sentences.
        notes: sentences on what is missing, or less comparable than it looks.
        sections: those that there are data for.
        settings: the configuration, as YAML.
    """

    name: str
    about: str
    headline: str
    notes: Sequence[str]
    sections: Sequence[PageSection]
    settings: str


def sorted_out(found: Sequence[PageSection | str | None]) -> tuple[list[PageSection], list[str]]:
    """Sections, and the sentences on those that are missing."""
    sections = [one for one in found if isinstance(one, PageSection)]
    return sections, list(dict.fromkeys(one for one in found if isinstance(one, str)))
