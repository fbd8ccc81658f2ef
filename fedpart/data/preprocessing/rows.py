"""Rows of a table as a network takes them: numbers, what is missing, and categories as zeros and ones."""

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.data.cells import (
    Floats,
    check_float32,
    ignoring,
    is_missing,
    one_in_float64,
    text_of,
    texts_of,
    truth,
)
from fedpart.data.columns import Columns, numbers_of
from fedpart.data.preprocessing.base import Preprocessing
from fedpart.data.table_files import columns_of


class Rows(Preprocessing, kind="table"):
    """Rows ``[n, columns]`` float64 become inputs ``[n, features]`` float32.

    A number that is missing is NaN in a row, a date counts days since 1970-01-01 UTC, and a category is the
    place of its level, or any other number for an unknown one. Features are first the numbers, ``((x - shift)
    / scale - mean) / deviation``, then a 1 for each that is missing, where training rows missed some, and
    then a 1 for the level of each category. Levels that are rare, and those unknown, share a feature; where
    training rows had no rare ones, an unknown one is 0 at all levels.

    Args:
        state: ``columns`` in the order of rows, each with ``name`` and ``kind``: of a ``number`` and a
            ``date`` ``shift``, ``scale``, ``mean``, ``deviation``, ``fill`` (in place of NaN) and
            ``indicator``; of a ``category`` ``levels`` (names; an empty one is what is missing) and ``rare``,
            whether there is a feature for others. ``standardise``, ``missing``: of :func:`.fitted`;
            ``read``: see :func:`.columns_of`.
    """

    places: Tensor
    moments: Tensor
    indicated: Tensor
    levels: Tensor

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(state)
        self.columns: list[dict[str, Any]] = state["columns"]
        numbers = [place for place, column in enumerate(self.columns) if column["kind"] != "category"]
        indicated = [i for i, place in enumerate(numbers) if self.columns[place]["indicator"]]
        moments = [
            [np.nan if (value := self.columns[place][name]) is None else value for place in numbers]
            for name in ("shift", "scale", "mean", "deviation", "fill")
        ]
        levels = [  # of each feature the column, the level, and how many levels there are
            [place, level, len(column["levels"])]
            for place, column in enumerate(self.columns)
            if column["kind"] == "category"
            for level in range(len(column["levels"]) + column["rare"])
        ]
        for name, values in (("places", numbers), ("indicated", indicated)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.int64), persistent=False)
        for name, rows in (("moments", moments), ("levels", list(zip(*levels, strict=True)))):
            self.register_buffer(name, torch.tensor(rows, dtype=torch.float64), persistent=False)

    @property
    def learned(self) -> bool:
        """Whether numbers or names of training rows are in it."""
        made = self.state["standardise"], self.state["missing"] != "refuse", self.state.get("target")
        return bool(any(made) or len(self.levels))

    def forward(self, rows: Tensor) -> Tensor:
        """Inputs ``[n, features]`` float32 of rows ``[n, columns]``."""
        rows, parts = rows.double(), []
        if len(self.places):
            shift, scale, mean, deviation, fill = self.moments
            numbers = rows[:, self.places]
            missing = torch.isnan(numbers)
            parts.append(((torch.where(missing, fill, numbers) - shift) / scale - mean) / deviation)
            if len(self.indicated):
                parts.append(missing[:, self.indicated].double())
        if len(self.levels):
            owner, level, count = self.levels
            codes = rows[:, owner.long()]
            known = (codes >= 0) & (codes < count)
            parts.append((torch.where(known, codes, count) == level).double())
        return torch.cat(parts, 1).float()

    def encode(self, columns: Columns, file: str, exact: bool = False) -> Tensor:
        """Rows ``[n, columns]`` of a table's columns, matched by name.

        Args:
            columns: those of the table, and maybe others.
            file: its name, for messages.
            exact: whether values are refused of which float32 makes one.

        Raises:
            ValueError: a column is not there, or a cell is not what its column holds, or is missing where it
                may not be; the message names the row.
        """
        allowed, values = self.state["missing"] != "refuse", []
        hint = "" if allowed else "set missing: mean, "
        for column in self.columns:
            name, kind = column["name"], column["kind"]
            absent = f"{file} has no column {name!r}, which the training data have"
            require(name in columns, f"{absent}; add it, or train without it {ignoring(name)}.")
            cells = columns[name]
            if kind == "category":
                codes = {level: code for code, level in enumerate(column["levels"])}
                texts = levels_of(cells) if allowed else texts_of(cells, name, file)
                alike = {truth(level): code for level, code in codes.items()}
                for text in {*texts} - codes.keys():
                    codes[text] = alike.get(truth(text), len(column["levels"]))
                values.append(np.array([codes[text] for text in texts], dtype=np.float64))
                continue
            gone = missing_in(cells) if allowed else np.zeros(len(cells), dtype=bool)
            if gone.any():
                cells = [_NONE[kind] if empty else cell for cell, empty in zip(cells, gone, strict=True)]
            if kind == "date":
                numbers = dates_of(cells, name, file)
            else:
                of_text = None if exact else "write numbers there, as the training data have"
                numbers = numbers_of(cells, name, file, hint, of_text)
            if exact:
                self._check_exact(cells, numbers, name, file)
            numbers[gone] = np.nan
            values.append(numbers)
        return torch.from_numpy(np.stack(values, 1))

    def unknown(self, rows: Tensor) -> dict[str, int]:
        """By category, in how many of ``rows [n, columns]`` the level is a rare or an unknown one, if any."""
        most = torch.tensor([len(column.get("levels", ())) or torch.inf for column in self.columns])
        return {name: n for name, n in zip(self.names, (rows >= most).sum(0).tolist(), strict=True) if n}

    def remark(self, rows: Tensor, whose: str = "") -> None:
        """Warn of columns whose levels most of ``rows [n, columns]`` have not from training."""
        for name, count in self.unknown(rows).items() if len(rows) >= 10 else ():  # a few may well be rare
            if 2 * count > len(rows):
                more = (
                    f"{count} of {len(rows)} rows{whose} have a level of {name!r} that training rows hardly"
                )
                warnings.warn(f"{more} have; are they spelled as there?", RuntimeWarning, stacklevel=5)

    def _check_exact(self, cells: Sequence[Any], numbers: Floats, name: str, file: str) -> None:
        leave = f"or leave the column out {ignoring(name)}"
        pair = one_in_float64(cells, numbers)
        merged = f"The column {name!r} of {file} has values that are one"
        told = f"{merged} in float64, such as {pair}; subtract a constant in the file, {leave}."
        require(pair is None, told)
        if not self.state["standardise"]:
            check_float32(numbers, f"The column {name!r} of {file}", f"set standardise: true, {leave}")

    def inputs(self, given: Any) -> Tensor:
        """Inputs of raw rows as :func:`.columns_of` takes them; or of arrays and lists ``[n, columns]`` or
        ``[columns]``, in the order of :attr:`names`.

        Raises:
            ValueError: as :meth:`encode`; or it is a tensor, which may hold rows or what is made of them.
        """
        table, listed = given, isinstance(given, (Tensor, np.ndarray, list, tuple))
        if isinstance(given, Tensor):
            made = self.state["standardise"] or len(self.levels) or len(self.indicated)
            unsaid = "A tensor may hold raw rows, or inputs that are made of them"
            ways = "give rows as an array, a list, a data frame or a file, or inputs as a Dataset"
            require(not made, f"{unsaid}; {ways}.")
            table = given.numpy(force=True)
        table = np.atleast_1d(table) if isinstance(table, np.ndarray) else table
        if listed and not any(isinstance(row, Mapping) for row in table):
            cells = np.array(table, dtype=object)
            cells = cells[None] if cells.ndim == 1 else cells
            each = f"A row has a cell for each of the {len(self.names)} columns trained on, in their order"
            got = f"got an array {[*cells.shape]}; give rows so ({', '.join(self.names)}), or columns by name"
            require(cells.shape[1:] == (len(self.names),), f"{each}; {got}.")
            table = dict(zip(self.names, cells.T, strict=True))
        encoded = self.encode(*columns_of(table, self.state["read"]))
        self.remark(encoded)
        result: Tensor = self(encoded)
        return result

    def example(self, rows: int) -> Tensor:
        """Rows whose numbers are near those of the training rows, and with levels in turn."""
        made, places = torch.empty(rows, len(self.columns), dtype=torch.float64), torch.arange(rows)
        for place, column in enumerate(self.columns):
            if column["kind"] == "category":
                made[:, place] = places % (len(column["levels"]) + 1)
            else:
                spread = column["mean"] + column["deviation"] * torch.sin(places + place)
                made[:, place] = column["shift"] + column["scale"] * spread
                if column["fill"] is not None:
                    made[place % rows, place] = torch.nan
        return made


_NONE: dict[str, Any] = {"number": 0, "date": "1970-01-01"}  # while others are read
_ZONE = r" ?(?:Z|UTC|([+-]\d\d):?(\d\d)?)"
DATE = re.compile(rf"(\d{{4}}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(?:{_ZONE})?)?")


def dates_of(cells: Sequence[Any], name: str, file: str) -> Floats:
    """Days since 1970-01-01 UTC, ``[n]``, of dates such as 2024-12-31 and 2024-12-31 18:30, which are in UTC,
    and 2024-12-31T18:30Z or +02:00."""
    days = days_of(cells)
    if np.isnan(days).any():
        row = int(np.flatnonzero(np.isnan(days))[0])
        here = f"Row {row + 1} of {file}: the column {name!r} is {str(cells[row]).strip()[:40]!r}"
        raise ValueError(f"{here}, which is no date such as 2024-12-31; repair the row.")
    return days


def days_of(cells: Sequence[Any]) -> Floats:
    """Days since 1970-01-01 UTC, ``[n]``; NaN where a cell is no date, as 2024-02-30."""
    microseconds = np.array([_instant(str(cell).strip()) for cell in cells], dtype="datetime64[us]")
    return np.where(np.isnat(microseconds), np.nan, microseconds.astype(np.float64)) / 86_400e6


def _instant(text: str) -> np.datetime64:
    if (match := DATE.fullmatch(text)) is None:
        return np.datetime64("NaT", "us")
    day, time, hours, minutes = match.groups()
    try:
        moment = np.datetime64(f"{day}T{time or '00:00'}"[:26], "us")
    except ValueError:
        return np.datetime64("NaT", "us")
    east = 0 if hours is None else int(hours) * 60 + int(f"{hours[0]}{minutes or 0}")
    return moment - np.timedelta64(east, "m")


def missing_in(cells: Sequence[Any]) -> Any:
    """Which cells are missing, ``[n]`` bool."""
    return np.array([is_missing(cell) for cell in cells], dtype=bool)


def levels_of(cells: Sequence[Any]) -> list[str]:
    """Cells as names of levels; what is missing is the empty one."""
    return ["" if is_missing(cell) else text_of(cell) for cell in cells]
