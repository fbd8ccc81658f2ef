"""What the columns of a table mean: inputs, targets, and whose an example is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpart.checks import check_list
from fedpart.data.cells import (
    OTHER_UNIT,
    Floats,
    Pointed,
    check_float32,
    in_yaml,
    is_empty,
    numbered,
    plain,
    texts_of,
)
from fedpart.data.dataset import Dataset, Splits
from fedpart.data.splitting.hold_out import ClientHoldOut, HoldOut, with_held_out
from fedpart.registry import nearest

Columns = Mapping[str, Sequence[Any]]
"""Values by the name of their column, all of one length; text in CSV files, numbers or text in others."""


@dataclass(frozen=True)
class Part:
    """Examples of one part of a data set, as a source gives them."""

    name: str  # of the file, for messages; each part has its own
    targets: Sequence[Any]  # [n]
    clients: Sequence[Any] | None  # [n] names
    dataset: Callable[[Tensor, Tensor | None], Dataset]  # of targets [n] and clients [n]


class Roles:
    """Which column is what, and which are left out; all others are inputs, in the file's order. Names are
    compared as they look, see ``plain``: YAML may have made numbers of them."""

    def __init__(self, target: Any, client: Any = None, ignore: Sequence[Any] = ()) -> None:
        if isinstance(ignore, str):
            fault = f"data_options.ignore is a list of columns, got the text {ignore!r}; write"
            raise ValueError(f"{fault} ignore: [{in_yaml(ignore)}].")
        check_list("data_options.ignore", ignore or (), "columns", "[id, date]")
        for name, column in (("target", target), ("client", client)):
            if not isinstance(column, (str, bool, int, float, NoneType)):
                raise ValueError(f"data_options.{name} is the name of a column, got {column!r}; write one.")
        self.target = plain(str(target))
        self.client = None if client is None else plain(str(client))
        self.ignore = [plain(str(column)) for column in ignore or ()]

    def inputs(self, columns: Columns, file: str) -> list[str]:
        """The names of the inputs."""
        said = [self.target, *([] if self.client is None else [self.client])]
        for name in (*said, *self.ignore):
            if name not in columns:
                truth = name in ("True", "False")  # which YAML makes of yes, on, no and off
                hint = "quote a name such as no or on in YAML" if truth else nearest(name, columns)
                raise ValueError(f"{file} has no column {name!r}: {hint}")
        names = [name for name in columns if name not in said and name not in self.ignore]
        if not names:
            beside = ", ".join(map(repr, said))
            raise ValueError(f"{file} has no column for the inputs beside {beside}; add one or ignore fewer.")
        return names

    def part(self, columns: Columns, file: str, dataset: Callable[[Tensor, Tensor | None], Dataset]) -> Part:
        """The examples of a file, whose columns have all these roles."""
        self.inputs(columns, file)
        clients = None if self.client is None else columns[self.client][:]
        return Part(file, columns[self.target][:], clients, dataset)


def splits_of(
    parts: Mapping[str, Part], roles: Roles, real: bool, shares: Mapping[str, float],
    hold_out: HoldOut | ClientHoldOut, data_seed: int,
) -> Splits:  # fmt: skip
    """A data set of its parts, ``train`` first, whose clients and classes are numbered over all of them; what
    is missing is held out, see :func:`.with_held_out`."""
    values = {part.name: part.targets for part in parts.values()}
    targets, outputs, classes = targets_of(values, roles.target, real)
    owners: dict[str, Tensor] = {}
    names: tuple[str, ...] = ()
    if roles.client is not None:
        named = {part.name: part.clients for part in parts.values() if part.clients is not None}
        owners, names = numbered(named, roles.client)
    sets = {name: part.dataset(targets[part.name], owners.get(part.name)) for name, part in parts.items()}
    made: Any = with_held_out(sets, shares, hold_out, data_seed)
    return Splits(**made, num_classes=outputs, classes=classes, client_names=names)


def targets_of(
    values: Mapping[str, Sequence[Any]], name: str, real: bool, known: Sequence[str] | None = None
) -> tuple[dict[str, Tensor], int, tuple[str, ...]]:
    """Of each file numbers to predict, ``[n]`` float32, or classes, ``[n]`` int64; how many outputs a network
    needs; and the classes' names, none where these are 0..K-1. The training file comes first; classes
    are those in it, or ``known``."""
    if real:
        of_text = "name another target, or leave likelihood: gaussian out if these are classes"
        numbers = {file: numbers_of(cells, name, file, of_text=of_text) for file, cells in values.items()}
        for file, reals in numbers.items():
            check_float32(reals, f"The target {name!r} of {file}", OTHER_UNIT)
        if known is None:
            _check_varied(*next(iter(numbers.items())), name)
        return {file: torch.from_numpy(column).float() for file, column in numbers.items()}, 1, ()
    for file, column in values.items():
        for row, text in enumerate(texts_of(column, name, file), start=1):
            if math.isfinite(number := _number(text)) and not number.is_integer():
                fault = f"Row {row} of {file} has {text!r} as its {name!r}, which is no class but a number"
                raise ValueError(f"{fault} with decimals; set likelihood: gaussian to predict numbers.")
    labels, names = numbered(values if known is None else {"all clients": known, **values}, name)
    first = next(iter(labels.values()))
    for file, classes in labels.items():
        unknown = torch.nonzero(~torch.isin(classes, first))
        if len(unknown):
            row = int(unknown[0, 0])
            fault = f"Row {row + 1} of {file} has the {name!r} {names[int(classes[row])]!r},"
            raise ValueError(f"{fault} which no training example has; add some, or remove the row.")
    _check_varied(next(iter(values)), names, name)
    places = names == tuple(map(str, range(len(names))))
    return labels, len(names), () if places else names


def _check_varied(file: str, values: Sequence[Any] | Floats, name: str) -> None:
    """Refuse a target that is the same everywhere, which a network knows after one step."""
    if len(set(values)) < 2:
        fault = f"Every row of {file} has {str(values[0])!r} as its {name!r}, so there is nothing to learn;"
        raise ValueError(f"{fault} name another target, or add rows of another class or number.")


def floats_of(column: Sequence[Any]) -> Floats:
    """Cells as numbers, ``[n]``, NaN where one is none."""
    try:
        cells = np.asarray(column)
        if cells.dtype.kind in "OSU" and any(
            isinstance(cell, (str, bytes)) and ("_" in str(cell) or isinstance(cell, Pointed))
            for cell in column
        ):
            raise ValueError  # 1_0 is 10 for Python alone, and 1.2 none where numbers have commas
        none = cells.dtype.kind in "mMc" or cells.ndim > 1  # dates, complex numbers, lists
        return np.full(len(cells), np.nan) if none else cells.astype(np.float64)
    except (ValueError, TypeError):
        return np.array([_number(value) for value in column], dtype=np.float64)


def numbers_of(
    column: Sequence[Any], name: str, file: str, remedy: str = "", of_text: str | None = None
) -> Floats:
    """Cells as finite numbers, ``[n]``; refused by their row where one is none, with the ``remedy``;
    ``of_text``: that for a column of text, which may have another role, if not given."""
    numbers = floats_of(column)
    bad, quoted = np.flatnonzero(~np.isfinite(numbers)), in_yaml(name)
    if not len(bad):
        return numbers
    value = column[bad[0]]
    text = repr(str(value)[:40]) + (
        " where numbers have decimal commas" if isinstance(value, Pointed) else ""
    )
    if len(bad) == len(numbers) and not is_empty(value):
        roles = (
            f"data_options: {{client: {quoted}}} if it says whose a row is, {{ignore: [{quoted}]}} to leave "
            f"it out, or categorical: auto if it names categories"
        )
        raise ValueError(
            f"The column {name!r} of {file} holds no numbers, but such as {text}: {of_text or roles}."
        )
    what = "is empty" if is_empty(value) else f"is {text}, which is no finite number"
    raise ValueError(
        f"Row {bad[0] + 1} of {file}: the column {name!r} {what}; repair the row, {remedy}or leave the "
        f"column out (data_options: {{ignore: [{quoted}]}})."
    )


def _number(value: Any) -> float:
    try:
        return np.nan if "_" in str(value) else float(value)
    except (ValueError, TypeError):
        return np.nan


def column_names(written: Sequence[str], file: str) -> list[str]:
    """Names as they look, see ``plain``."""
    names = [plain(name) for name in written]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{file} has two columns {twice!r}; give each a name of its own.")
    return names
