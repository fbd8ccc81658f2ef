"""Tables of texts, for the terminal and for Markdown, and of numbers, for CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from simulations.results.estimate import Estimate
from simulations.results.words import DASH

LF = "\n"
DIFFERENCE = "difference\n[std. err.]"
HELD_OUT = "held out\n[%]"
EQUAL_UPLOAD = {unit: f"at equal\nupload {unit}" for unit in ("[%]", "[nats]")}
CLIENTS = {unit: f"clients {unit}\n(worst tenth)" for unit in ("[%]", "[nats]")}
LML = "L_ML\n[nats]"
COSTS = {"upload", "download", "seconds"}
COLUMNS = (
    "At equal upload: the validation score when a run had sent no more than the method that sends least at "
    "the same seed. Held out: clients' examples that are never trained on, because they are scored. Clients: "
    "mean of a run's last ten evaluations by its clients, and of the tenth that fare worst. L_ML: per "
    "example, mean of the last ten rounds that have it"
)


def terminal_table(head: Sequence[str], title: str, caption: str | None, padding: int = 0) -> Table:
    """An empty table, 80 columns wide; ``padding``: more spaces than one between two columns."""
    table = Table(title=title, title_style="bold", caption=caption, box=box.SIMPLE_HEAD)
    table.pad_edge, table.padding = False, (0, padding, 0, 0)
    for name in head:
        table.add_column(Text(name), justify="left" if name == "method" else "right", overflow="fold")
    return table


def terminal_row(head: Sequence[str], row: Sequence[str]) -> list[str]:
    """Without what was learned, and what explains COLUMNS; without L_ML beside scores on test data.

    The paper's columns replace bytes and time, and so do the clients' scores beside those on test data.
    """
    hidden, central = {"learned", HELD_OUT, *EQUAL_UPLOAD.values()}, any(h.startswith("test\n") for h in head)
    if central:
        hidden.add(LML)
    if DIFFERENCE in head or (central and not set(head).isdisjoint(CLIENTS.values())):
        hidden |= COSTS
    return without(hidden, head, row)


def without(hidden: Set[str], head: Sequence[str], row: Sequence[str]) -> list[str]:
    """The texts of a row that are not in a hidden column."""
    return [text for name, text in zip(head, row, strict=True) if name not in hidden]


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; line breaks stay in rows."""
    lines = []
    for row in (head, ["---"] * len(head), *rows):
        escaped = [cell.replace("|", "\\|").replace(LF, " " if row is head else "<br>") for cell in row]
        lines.append(f"| {' | '.join(escaped)} |")
    return lines


def shown(estimate: Estimate | None, text: Callable[[float], str]) -> str:
    """The text of a mean, or a dash."""
    return DASH if estimate is None else text(estimate.mean)


def with_error(estimate: Estimate | None, factor: float, digits: int) -> str:
    """:meth:`.Estimate.text`, or a dash."""
    return DASH if estimate is None else estimate.text(factor, digits)


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
