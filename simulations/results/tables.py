"""Tables of texts, for the terminal and for Markdown, and of numbers, for CSV and JSON."""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedpart.checks import is_number, require
from simulations.errors import ConfigError
from simulations.results.scores import DASH, Estimate, shown

LF = "\n"
CAPTION = "mean \N{PLUS-MINUS SIGN} standard error over seeds"
# by the unit at a heading's end: what a number of the summary is multiplied by, and digits behind the point
_UNITS = {
    "[%]": (100.0, 1), "[GB]": (1e-9, 2), "[MB]": (1e-6, 1), "[M]": (1e-6, 2), "[k]": (1e-3, 1),
    "[kB]": (1e-3, 1), "[deg]": (1.0, 0), "[h]": (1 / 3600, 2), "[min]": (1 / 60, 1), "[s]": (1.0, 1),
    "[nats]": (1.0, 3), "[bytes]": (1.0, 0),
}  # fmt: skip


def check_unit(heading: str, file: str) -> None:
    """Refuse a column's heading that ends in a unit to which nothing is converted."""
    unit = heading[heading.rfind("[") :]
    known = unit in _UNITS or not (unit.startswith("[") and unit.endswith("]"))
    require(
        known,
        f"{file}: the unit of {heading!r} is none of {', '.join(_UNITS)}; write one, or no square brackets.",
        ConfigError,
    )


def terminal_table(
    head: Sequence[str], title: str, caption: str | None = None, padding: int = 0,
    rows: Iterable[Sequence[str]] = (), bold: int | None = None,
) -> Table:  # fmt: skip
    """A table, 80 columns wide; ``padding``: of columns, beyond one space; ``bold``: a row's place."""
    table = Table(title=title, title_style="bold", caption=caption, box=box.SIMPLE_HEAD)
    table.pad_edge, table.padding = False, (0, padding, 0, 0)
    for name in head:
        table.add_column(Text(name), justify="left" if name == "method" else "right", overflow="fold")
    for i, row in enumerate(rows):
        table.add_row(*(Text(shown(cell)) for cell in row), style="bold" if i == bold else "")
    return table


def without(
    hidden: Iterable[str], head: Sequence[str], rows: Iterable[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Headings and rows that are left if columns are hidden by the first line of their headings."""
    kept = [i for i, name in enumerate(head) if name.partition(LF)[0] not in hidden]
    return [head[i] for i in kept], [[row[i] for i in kept] for row in rows]


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; line breaks stay in rows."""
    lines = []
    for row in (head, ["---"] * len(head), *rows):
        escaped = [cell.replace("|", "\\|").replace(LF, " " if row is head else "<br>") for cell in row]
        lines.append(f"| {' | '.join(escaped)} |")
    return lines


def number_columns(estimates: Mapping[str, Estimate | None]) -> dict[str, Any]:
    """Means by name, each with its standard error; empty where there is none."""
    flat: dict[str, Any] = {}
    for name, estimate in estimates.items():
        flat[name] = "" if estimate is None else estimate.mean
        flat[f"{name} standard_error"] = "" if estimate is None or estimate.error is None else estimate.error
    return flat


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows that need not have the same columns."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_json(path: Path, content: Any) -> None:
    """Indented, with a line break at its end; neither NaN nor infinity."""
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def text_of(heading: str, path: str, summaries: Sequence[Mapping[str, Any]]) -> str:
    """Over a row's finished runs ``97.0 ± 0.1``, ``97.0`` of one, or a dash; strokes separate a list's."""
    factor, digits = _UNITS.get(heading[heading.rfind("[") :], (1.0, 3))
    texts = []
    for mean in estimates_at(path, summaries):
        alone = "" if mean is None else f"{factor * mean.mean:,.{digits}f}"  # one run; or counts
        texts.append(mean.text(factor, digits) if mean is not None and mean.error else alone or DASH)
    return " / ".join(texts) or DASH


def estimates_at(path: str, summaries: Sequence[Mapping[str, Any]]) -> list[Estimate | None]:
    """An estimate for each number at a place in summaries, see :func:`values_at`; none if some have more."""
    each = [values_at(path, summary) for summary in summaries]
    return [Estimate.of(values) for values in zip(*each, strict=True)] if len({*map(len, each)}) == 1 else []


def values_at(path: str, summary: Any) -> list[float | None]:
    """The numbers at a place in a summary, keys separated by points: one, those of a list, or ``[None]``."""
    if isinstance(summary, list):
        return [value for item in summary for value in values_at(path, item)]
    if not path:
        return [float(summary) if is_number(summary) and math.isfinite(summary) else None]
    if not isinstance(summary, Mapping):
        return [None]
    keys = [key for key in summary if path == key or path.startswith(f"{key}.")]
    inner = (values_at(path[len(key) + 1 :], summary[key]) for key in sorted(keys, key=len, reverse=True))
    return next((values for values in inner if values != [None]), [None])
