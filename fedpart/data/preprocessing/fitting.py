"""How the preprocessing of a table is made, from its training rows alone."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.data.cells import Floats, ignoring, merged, refuse_alike, truth
from fedpart.data.columns import Columns, floats_of
from fedpart.data.dataset import Dataset, Splits, has_labels
from fedpart.data.preprocessing.rows import DATE, Rows, days_of, levels_of, missing_in
from fedpart.registry import nearest

Categorical = Literal["auto"] | Sequence[Any] | None
Missing = Literal["refuse", "mean", "indicator"]
RARE = 0.01  # of the training rows: a level with fewer shares a feature with others
_UNNAMED = re.compile(  # by pandas, R (make.names, readr), polars and pyarrow
    r"\s*|unnamed[ :._]*\d+(\.\d+)*(_level_\d+)?|\.\.\.\d+|_duplicated_\d+|__index_level_\d+__", re.IGNORECASE
)


def numbers_of_rows(columns: Columns) -> Callable[[Tensor, Tensor | None], Dataset]:
    """Makes data sets whose inputs are the numbers of rows, until they are :func:`prepared`."""
    rows = len(next(iter(columns.values())))
    return lambda targets, clients: Dataset(torch.arange(rows), targets, clients=clients)


def prepared(
    splits: Splits, tables: Mapping[str, tuple[Columns, str]], names: Sequence[str], read: Mapping[str, Any],
    standardise_target: bool = True, made: Rows | None = None, **options: Any,
) -> Splits:  # fmt: skip
    """Splits with the inputs ``names`` in place of :func:`numbers_of_rows`, and the preprocessing that made
    them. ``tables`` are columns, and the name for messages, by part; a part that has none is of rows of the
    training table. See :func:`fitted`, whose are ``read`` and ``options``, or which has been ``made``. Real
    targets stay as they are: the preprocessing tells mean and deviation of those of training rows, for
    :meth:`.Gaussian.in_units`."""
    columns, file = tables["train"]
    for name in names:
        fault = f"{file} has a column without a name ({name!r}), as an index that was written with it has"
        remedy = f"name it in the file, or leave it out {ignoring(name)}"
        require(not _UNNAMED.fullmatch(name), f"{fault}; {remedy}.")
    if made is None:
        rows = splits.train.inputs.numpy()
        made = fitted({name: columns[name] for name in names}, rows, file, read, **options)
    raw = {part: made.encode(*table, exact=True) for part, table in tables.items()}
    for part in raw.keys() - {"train"}:
        made.remark(raw[part], f" of the {part} data")
    parts: dict[str, Any] = {}
    for part, dataset in splits.parts().items():
        whole = raw[part if part in raw and len(raw[part]) else "train"]
        parts[part] = replace(dataset, inputs=made(whole[dataset.inputs]))
    if made.state["standardise"]:
        _check_apart(made, torch.cat([*raw.values()]))
    if standardise_target and not has_labels(splits.train) and "sums" not in made.state:
        reals = splits.train.targets.double()
        deviation = reals.std(correction=0).item() or 1.0
        made.state["target"] = {"mean": reals.mean().item(), "deviation": deviation}
    return replace(splits, **parts, preprocessing=made)


def fitted(
    columns: Columns, rows: Sequence[int] | np.ndarray[Any, Any], file: str, read: Mapping[str, Any], *,
    standardise: bool = False, categorical: Categorical = None, missing: Missing = "refuse",
) -> Rows:  # fmt: skip
    """The preprocessing of a table.

    Args:
        columns: the inputs.
        rows: numbers of the training rows; nothing else is looked at.
        file: the table's name, for messages.
        read: how it is read, see :func:`.columns_of`.
        standardise: whether numbers and dates are brought to mean 0 and deviation 1. A column that never
            changes becomes 0.
        categorical: columns that hold names of categories; ``auto``: those of text, and dates are read; None:
            all columns hold numbers. A level that fewer than 1% of the rows have, or a single one, is rare.
        missing: what an empty cell is: refused; the mean of its column; or that with a feature that says so,
            where training rows miss some. A category that is missing is a level of its own.
    """
    kinds = kinds_of(columns, rows, categorical, missing, file)
    numeric = [name for name in columns if kinds[name] != "category"]
    values = [numbers_in(columns[name], rows, kinds[name]) for name in numeric]
    matrix = torch.from_numpy(np.stack(values, 1)) if values else torch.empty(len(rows), 0)
    absent = torch.isnan(matrix)
    fill = matrix.nanmean(0)
    for place in torch.nonzero(torch.isnan(fill))[:, 0].tolist() if missing != "refuse" else ():
        name = numeric[place]
        empty = f"The column {name!r} of {file} has no number in any training row"
        held = not missing_in([columns[name][row] for row in rows]).all()  # text, which is refused by its row
        require(held, f"{empty}; leave it out {ignoring(name)}.")
    matrix = torch.where(absent, fill, matrix)
    zero, unit = torch.zeros(matrix.shape[1]), torch.ones(matrix.shape[1])
    plain = {"shift": zero, "scale": unit, "mean": zero, "deviation": unit}
    moved = _moments(matrix) if standardise and numeric else plain
    described: dict[str, dict[str, Any]] = {
        name: {
            "name": name,
            "kind": kinds[name],
            **{key: value[place].item() for key, value in moved.items()},
            "fill": None if missing == "refuse" else fill[place].item(),
            "indicator": missing == "indicator" and bool(absent[:, place].any()),
        }
        for place, name in enumerate(numeric)
    }
    for name in (name for name in columns if kinds[name] == "category"):
        counts = Counter(levels_of([columns[name][row] for row in rows]))
        described[name] = category(name, counts, len(rows), file)
    told = {"standardise": standardise, "missing": missing, "read": dict(read)}
    return Rows({"kind": "table", "columns": [described[name] for name in columns], **told})


def category(name: str, counts: Mapping[str, int], rows: int, file: str) -> dict[str, Any]:
    """A column of :class:`.Rows` for levels that so many of the training ``rows`` have."""
    least = max(2, RARE * rows)
    levels = sorted(level for level, count in counts.items() if count >= least)
    remedy = f"leave it out {ignoring(name)}, or write plain numbers or dates like 2024-12-31."
    unique = f"The column {name!r} of {file} has hardly a value twice, so it is no category"
    require(bool(levels), f"{unique}; {remedy}")
    refuse_alike(levels, f"The column {name!r}", truth)
    return {"name": name, "kind": "category", "levels": levels, "rare": len(levels) < len(counts)}


def kinds_of(
    columns: Columns, rows: Any, categorical: Categorical, missing: Missing, file: str
) -> dict[str, str]:
    """``number``, ``date`` or ``category`` for each column, see :func:`fitted`."""
    wanted = f"data_options.missing is refuse, mean or indicator, got {missing!r}; choose one."
    require(missing in ("refuse", "mean", "indicator"), wanted)
    wanted = f"data_options.categorical is auto, or a list of columns, got {categorical!r}; write one."
    require(not isinstance(categorical, str) or categorical == "auto", wanted)
    named = [] if categorical in (None, "auto") else [str(name) for name in categorical or ()]
    for name in named:
        if name not in columns:
            raise ValueError(f"{file} has no input {name!r} that is categorical: {nearest(name, columns)}")
    return {
        name: _kind([cells[row] for row in rows])
        if categorical == "auto"
        else ("category" if name in named else "number")
        for name, cells in columns.items()
    }


def _kind(cells: Sequence[Any]) -> str:
    held = [cell for cell, gone in zip(cells, missing_in(cells), strict=True) if not gone]
    dates = sum(DATE.fullmatch(str(cell).strip()) is not None for cell in held)
    if 2 * dates > len(held):  # a wrong cell among many right ones is refused by its row
        return "date"
    numbers = int(np.isfinite(floats_of(held)).sum())
    return "number" if 2 * numbers > len(held) or not held else "category"


def numbers_in(cells: Sequence[Any], rows: Any, kind: str) -> Floats:
    """NaN where a cell is missing, or not what it should be, which :meth:`.Rows.encode` then refuses."""
    if kind == "date":
        return days_of([cells[row] for row in rows])
    return np.asarray(floats_of(cells)[rows])


def _moments(matrix: Tensor) -> dict[str, Tensor]:
    """Of each column: 0 where it never changes, with no rounding."""
    shift = matrix[0]
    moved = matrix - shift
    scale = moved.abs().amax(0)  # so that squares are neither too large nor too small
    scale[scale <= 8 * torch.finfo(torch.float64).eps * shift.abs()] = torch.inf
    scaled = moved / scale
    mean, deviation = scaled.mean(0), scaled.std(0, correction=0)
    constant = deviation == 0
    scale[constant], deviation[constant] = 1.0, 1.0
    return {"shift": shift, "scale": scale, "mean": mean, "deviation": deviation}


def _check_apart(made: Rows, rows: Tensor) -> None:
    """Refuse a standardised column of which float32 merges values."""
    features = made(rows)
    for place, column in enumerate(column for column in made.columns if column["kind"] != "category"):
        numbers = rows[:, made.places[place]].numpy()
        here = ~np.isnan(numbers)
        numbers, rounded, name = numbers[here], features[:, place].double().numpy()[here], column["name"]
        if column["deviation"] != 1 and here.any() and (pair := merged(numbers, rounded)) is not None:
            furthest = numbers[np.abs(rounded).argmax()]
            fault = f"The column {name!r}, standardised, has values that are one in float32, such as {pair}"
            cause = f"for an outlier, {furthest!s}, is far from them; correct or remove its row"
            raise ValueError(f"{fault}, {cause}, or leave the column out {ignoring(name)}.")
