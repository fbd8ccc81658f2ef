"""Rows of a table as a network takes them: numbers, what is missing, and categories as zeros and ones."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpart.data.cells import (
    Floats,
    check_float32,
    in_yaml,
    is_missing,
    one_in_float64,
    text_of,
    texts_of,
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
            whether there is a feature for others. ``standardise``, ``missing``: what :func:`.fitted` was told. ``read``: see
            :func:`.columns_of`.
    """

    places: Tensor
    shift: Tensor
    scale: Tensor
    mean: Tensor
    deviation: Tensor
    fill: Tensor
    indicated: Tensor
    owners: Tensor
    wanted: Tensor
    counts: Tensor

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(state)
        self.columns: list[dict[str, Any]] = state["columns"]
        numbers = [place for place, column in enumerate(self.columns) if column["kind"] != "category"]
        self._numbers, self._levels = len(numbers), 0
        self._keep("places", numbers, torch.int64)
        for name in ("shift", "scale", "mean", "deviation", "fill"):
            values = [self.columns[place][name] for place in numbers]
            self._keep(name, [np.nan if value is None else value for value in values])
        indicated = [i for i, place in enumerate(numbers) if self.columns[place]["indicator"]]
        self._keep("indicated", indicated, torch.int64)
        owners, wanted, counts = [], [], []
        for place, column in enumerate(self.columns):
            if column["kind"] == "category":
                known = len(column["levels"])
                features = range(known + column["rare"])
                owners += [place] * len(features)
                wanted += features
                counts += [known] * len(features)
        self._indicated, self._levels = len(indicated), len(owners)
        self._keep("owners", owners, torch.int64)
        self._keep("wanted", wanted)
        self._keep("counts", counts)

    def _keep(self, name: str, values: Sequence[Any], dtype: torch.dtype = torch.float64) -> None:
        self.register_buffer(name, torch.tensor(values, dtype=dtype), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Inputs ``[n, features]`` float32 of rows ``[n, columns]``."""
        rows, parts = rows.double(), []
        if self._numbers:
            numbers = rows[:, self.places]
            missing = torch.isnan(numbers)
            filled = torch.where(missing, self.fill, numbers)
            parts.append(((filled - self.shift) / self.scale - self.mean) / self.deviation)
            if self._indicated:
                parts.append(missing[:, self.indicated].double())
        if self._levels:
            codes = rows[:, self.owners]
            known = (codes >= 0) & (codes < self.counts)
            parts.append((torch.where(known, codes, self.counts) == self.wanted).double())
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
        for column in self.columns:
            name, kind = column["name"], column["kind"]
            if name not in columns:
                raise ValueError(
                    f"{file} has no column {name!r}, which the training data have; add it, or ignore it there."
                )
            cells = columns[name]
            if kind == "category":
                codes = {level: code for code, level in enumerate(column["levels"])}
                texts = levels_of(cells) if allowed else texts_of(cells, name, file)
                values.append(np.array([codes.get(text, len(codes)) for text in texts], dtype=np.float64))
                continue
            gone = missing_in(cells) if allowed else np.zeros(len(cells), dtype=bool)
            if gone.any():
                held = [_NONE[kind] if empty else cell for cell, empty in zip(cells, gone, strict=True)]
            else:
                held = cells
            numbers = numbers_of(held, name, file) if kind == "number" else dates_of(held, name, file)
            if exact:
                self._check_exact(held, numbers, name, file)
            numbers[gone] = np.nan
            values.append(numbers)
        return torch.from_numpy(np.stack(values, 1))

    def _check_exact(self, cells: Sequence[Any], numbers: Floats, name: str, file: str) -> None:
        leave = f"or leave the column out (data_options: {{ignore: [{in_yaml(name)}]}})"
        if (pair := one_in_float64(cells, numbers)) is not None:
            raise ValueError(
                f"The column {name!r} of {file} has values that are one in float64, such as {pair}; "
                f"subtract a constant in the file, {leave}."
            )
        if not self.state["standardise"]:
            check_float32(numbers, f"The column {name!r} of {file}", f"set standardise: true, {leave}")

    def inputs(self, given: Any) -> Tensor:
        """Inputs of a CSV or Parquet file, a data frame or a dict of columns, see :func:`.columns_of`."""
        result: Tensor = self(self.encode(*columns_of(given, self.state["read"])))
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
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?")


def dates_of(cells: Sequence[Any], name: str, file: str) -> Floats:
    """Days since 1970-01-01, ``[n]``, of dates such as 2024-12-31 and 2024-12-31 18:30."""
    texts = [str(cell).strip() for cell in cells]
    for row, text in enumerate(texts, start=1):
        if not DATE.fullmatch(text):
            raise ValueError(
                f"Row {row} of {file}: the column {name!r} is {text[:40]!r}, which is no date such as "
                f"2024-12-31; repair the row."
            )
    return np.array([text[:26] for text in texts], dtype="datetime64[us]").astype(np.float64) / 86_400e6


def missing_in(cells: Sequence[Any]) -> Any:
    """Which cells are missing, ``[n]`` bool."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
        return np.isnan(cells) if cells.dtype.kind == "f" else np.zeros(len(cells), dtype=bool)
    return np.array([is_missing(cell) for cell in cells], dtype=bool)


def levels_of(cells: Sequence[Any]) -> list[str]:
    """Cells as names of levels; what is missing is the empty one."""
    return ["" if is_missing(cell) else text_of(cell) for cell in cells]
