"""What the columns of a table mean: inputs, targets, and whose an example is."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpart.checks import check_list
from fedpart.data.cells import (
    OTHER_UNIT,
    Floats,
    check_float32,
    in_yaml,
    is_empty,
    merged,
    numbered,
    one_in_float64,
    plain,
    texts_of,
)
from fedpart.data.dataset import Dataset, Splits
from fedpart.data.splitting.hold_out import ClientHoldOut, HoldOut, with_held_out
from fedpart.registry import nearest

Columns = Mapping[str, Sequence[Any]]
"""Values by the name of their column, all of one length; text in CSV files, numbers or text in others."""

_UNNAMED = re.compile(  # by pandas, R (make.names, readr), polars and pyarrow
    r"\s*|unnamed[ :._]*\d+(\.\d+)*(_level_\d+)?|\.\.\.\d+|_duplicated_\d+|__index_level_\d+__", re.IGNORECASE
)


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
            raise ValueError(
                f"data_options.ignore is a list of columns, got the text {ignore!r}; write "
                f"ignore: [{in_yaml(ignore)}]."
            )
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
    parts: Mapping[str, Part],
    roles: Roles,
    real: bool,
    shares: Mapping[str, float],
    hold_out: HoldOut | ClientHoldOut,
    data_seed: int,
) -> Splits:
    """A data set of its parts, ``train`` first, whose clients and classes are numbered over all of them; what
    is missing is held out, see :func:`.with_held_out`."""
    values = {part.name: part.targets for part in parts.values()}
    targets, outputs, classes = targets_of(values, roles.target, real)
    owners: dict[str, Tensor] = {}
    if roles.client is not None:
        named = {part.name: part.clients for part in parts.values() if part.clients is not None}
        owners, _ = numbered(named, roles.client)
    sets = {name: part.dataset(targets[part.name], owners.get(part.name)) for name, part in parts.items()}
    return Splits(**with_held_out(sets, shares, hold_out, data_seed), num_classes=outputs, classes=classes)


def matrix(columns: Columns, names: Sequence[str], file: str, standardise: bool = False) -> Tensor:
    """Columns of numbers as inputs, [n, columns]: float32, or float64 for :func:`standardised`."""
    values = []
    for name in names:
        if name not in columns:
            raise ValueError(
                f"{file} has no column {name!r}, which the training data have; add it, or ignore it there."
            )
        if _UNNAMED.fullmatch(name):
            raise ValueError(
                f"{file} has a column without a name ({name!r}), as an index that was written with it has; "
                f"name it in the file, or leave it out (data_options: {{ignore: [{in_yaml(name)}]}})."
            )
        numbers = _numbers(columns[name], name, file)
        leave = f"or leave the column out (data_options: {{ignore: [{in_yaml(name)}]}})"
        if (pair := one_in_float64(columns[name], numbers)) is not None:
            raise ValueError(
                f"The column {name!r} of {file} has values that are one in float64, such as {pair}; "
                f"subtract a constant in the file, {leave}."
            )
        if not standardise:
            check_float32(numbers, f"The column {name!r} of {file}", f"set standardise: true, {leave}")
        values.append(numbers)
    inputs = torch.from_numpy(np.stack(values, 1))
    return inputs if standardise else inputs.float()


def targets_of(
    values: Mapping[str, Sequence[Any]], name: str, real: bool
) -> tuple[dict[str, Tensor], int, tuple[str, ...]]:
    """Of each file numbers to predict, ``[n]`` float32, or classes, ``[n]`` int64; how many outputs a network
    needs; and the classes' names, none where these are 0..K-1. The training file comes first."""
    if real:
        numbers = {file: _numbers(column, name, file) for file, column in values.items()}
        for file, reals in numbers.items():
            check_float32(reals, f"The target {name!r} of {file}", OTHER_UNIT)
        _check_varied(*next(iter(numbers.items())), name)
        return {file: torch.from_numpy(column).float() for file, column in numbers.items()}, 1, ()
    for file, column in values.items():
        for row, text in enumerate(texts_of(column, name, file), start=1):
            if math.isfinite(number := _number(text)) and not number.is_integer():
                raise ValueError(
                    f"Row {row} of {file} has {text!r} as its {name!r}, which is no class but a number with "
                    f"decimals; set likelihood: gaussian to predict numbers."
                )
    labels, names = numbered(values, name)
    first = next(iter(labels.values()))
    for file, classes in labels.items():
        unknown = torch.nonzero(~torch.isin(classes, first))
        if len(unknown):
            row = int(unknown[0, 0])
            raise ValueError(
                f"Row {row + 1} of {file} has the {name!r} {names[int(classes[row])]!r}, which no training "
                f"example has; add some, or remove the row."
            )
    _check_varied(next(iter(values)), names, name)
    places = names == tuple(map(str, range(len(names))))
    return labels, len(names), () if places else names


def standardised(splits: Splits, names: Sequence[str]) -> Splits:
    """Every input ``[n, features]`` brought to mean 0 and deviation 1, by numbers from training examples
    alone. One that never changes becomes 0; one of which float32 then merges values is refused by its
    name."""
    train = splits.train.inputs
    if not isinstance(train, Tensor) or train.ndim != 2 or not train.is_floating_point():
        raise ValueError("Only inputs [n, features] of real numbers can be standardised; leave it out.")
    first = train[0].double()

    def moved(inputs: Any) -> Tensor:  # 0 where a column never changes, with no rounding
        return torch.as_tensor(inputs).double() - first

    scale = moved(train).abs().amax(0)  # so that squares are neither too large nor too small
    scale[scale <= 8 * torch.finfo(torch.float64).eps * first.abs()] = torch.inf
    scaled = moved(train) / scale
    mean, deviation = scaled.mean(0), scaled.std(0, correction=0)
    constant = deviation == 0
    scale[constant], deviation[constant] = 1.0, 1.0

    def part(dataset: Dataset) -> Dataset:
        return replace(dataset, inputs=((moved(dataset.inputs) / scale - mean) / deviation).float())

    done = splits.mapped(part)
    parts = [(part.inputs, done.parts()[name].inputs) for name, part in splits.parts().items() if len(part)]
    before, after = (torch.cat(each).double().numpy().T for each in zip(*parts, strict=True))
    for name, numbers, rounded, never in zip(names, before, after, constant.tolist(), strict=True):
        if not never and (pair := merged(numbers, rounded)) is not None:
            furthest = numbers[np.abs(rounded).argmax()]
            raise ValueError(
                f"The column {name!r}, standardised, has values that are one in float32, such as {pair}, for "
                f"an outlier, {furthest!s}, is far from them; correct or remove its row, or leave the column "
                f"out (data_options: {{ignore: [{in_yaml(name)}]}})."
            )
    return done


def _check_varied(file: str, values: Sequence[Any] | Floats, name: str) -> None:
    """Refuse a target that is the same everywhere, which a network knows after one step."""
    if len(set(values)) < 2:
        raise ValueError(
            f"Every row of {file} has {str(values[0])!r} as its {name!r}, so there is nothing to learn; name "
            f"another target, or add rows of another class or number."
        )


def _numbers(column: Sequence[Any], name: str, file: str) -> Floats:
    try:
        cells = np.asarray(column)
        numbers = np.full(len(cells), np.nan) if cells.dtype.kind in "mM" else cells.astype(np.float64)
    except (ValueError, TypeError):
        numbers = np.array([_number(value) for value in column])
    bad, quoted = np.flatnonzero(~np.isfinite(numbers)), in_yaml(name)
    if not len(bad):
        return numbers
    value = column[bad[0]]
    text = repr(str(value)[:40])
    if len(bad) == len(numbers) and not is_empty(value):
        raise ValueError(
            f"The column {name!r} of {file} holds no numbers, but such as {text}: data_options: {{client: "
            f"{quoted}}} if it says whose a row is, {{ignore: [{quoted}]}} to leave it out, or make numbers "
            f"of it."
        )
    what = "is empty" if is_empty(value) else f"is {text}, which is no finite number"
    raise ValueError(
        f"Row {bad[0] + 1} of {file}: the column {name!r} {what}; repair the row, or leave the column out "
        f"(data_options: {{ignore: [{quoted}]}})."
    )


def _number(value: Any) -> float:
    try:
        return float(value)
    except (ValueError, TypeError):
        return np.nan


def column_names(written: Sequence[str], file: str) -> list[str]:
    """Names as they look, see ``plain``."""
    names = [plain(name) for name in written]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{file} has two columns {twice!r}; give each a name of its own.")
    return names
