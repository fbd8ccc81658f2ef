"""What the columns of a table mean: inputs, targets, and whose an example is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpart.data.dataset import Dataset, Splits
from fedpart.data.splitting.hold_out import ClientHoldOut, HoldOut, with_held_out
from fedpart.data.tables.files import Columns
from fedpart.registry import nearest

Floats = NDArray[np.float64]
_WHOLE = re.compile(r"(-?\d+)\.0+")


@dataclass(frozen=True)
class Roles:
    """Which column is what; all others are inputs, in the file's order.

    Attributes:
        target: the column to predict.
        client: the column that says whose an example is; None: nobody knows.
        ignore: columns that are left out.
    """

    target: str
    client: str | None = None
    ignore: Sequence[str] = ()

    def inputs(self, columns: Columns, file: str) -> list[str]:
        """The names of the inputs.

        Raises:
            ValueError: a column is missing, or there is none for the inputs.
        """
        own = [self.target, *([] if self.client is None else [self.client])]
        for name in (*own, *self.ignore):
            if name not in columns:
                raise ValueError(f"{file} has no column {name!r}: {nearest(str(name), columns)}")
        found = [name for name in columns if name not in own and name not in self.ignore]
        if not found:
            raise ValueError(
                f"{file} has no column for the inputs beside {', '.join(map(repr, own))}; add one, or ignore "
                f"fewer."
            )
        return found


@dataclass(frozen=True)
class Part:
    """Examples of one part of a data set, as a source gives them.

    Attributes:
        name: of the file, for messages; each part has its own.
        targets: [n] values.
        clients: [n] names; None: nobody knows them.
        dataset: makes the data set of targets [n] and clients [n] or None.
    """

    name: str
    targets: Sequence[Any]
    clients: Sequence[Any] | None
    dataset: Callable[[Tensor, Tensor | None], Dataset]


def splits_of(
    parts: Mapping[str, Part],
    target: str,
    client: str | None,
    real: bool,
    shares: Mapping[str, float],
    hold_out: HoldOut | ClientHoldOut,
    data_seed: int,
) -> Splits:
    """A data set of its parts, ``train`` first; clients and classes are numbered over all of them.

    Args:
        parts: train, and those of validation and test that there are.
        target, client: what the columns are called, for messages.
        real: see :func:`targets_of`.
        shares, hold_out, data_seed: of what is missing, see :func:`.with_held_out`.

    Raises:
        ValueError: see :func:`targets_of`, :func:`numbered` and ``with_held_out``.
    """
    targets, outputs, classes = targets_of({part.name: part.targets for part in parts.values()}, target, real)
    owners: dict[str, Tensor] = {}
    if client is not None:
        named = {part.name: part.clients for part in parts.values() if part.clients is not None}
        owners, _ = numbered(named, client)
    given = {name: part.dataset(targets[part.name], owners.get(part.name)) for name, part in parts.items()}
    found = with_held_out(given, shares, hold_out, data_seed)
    return Splits(**found, num_classes=outputs, classes=classes)


def matrix(columns: Columns, names: Sequence[str], file: str) -> Tensor:
    """Columns of numbers as inputs, [n, columns] float32.

    Raises:
        ValueError: names a column and a row whose value is no finite number; or a column that is missing.
    """
    for name in names:
        if name not in columns:
            raise ValueError(
                f"{file} has no column {name!r}, which the training data have; add it, or ignore it there."
            )
    return torch.from_numpy(np.stack([_numbers(columns[name], name, file) for name in names], 1)).float()


def numbered(values: Mapping[str, Sequence[Any]], name: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Names as numbers in ascending order, whole numbers by value and others as text.

    Args:
        values: of a column, by the file that they are from.
        name: of the column, for messages.

    Returns:
        [n] int64 for each file, and the K names.

    Raises:
        ValueError: names a row that is empty.
    """
    texts = {file: _texts(column, name, file) for file, column in values.items()}
    known = sorted(set().union(*texts.values()), key=_ascending(texts))
    numbers = {text: number for number, text in enumerate(known)}
    found = {file: torch.tensor([numbers[text] for text in column]) for file, column in texts.items()}
    return found, tuple(known)


def targets_of(
    values: Mapping[str, Sequence[Any]], name: str, real: bool
) -> tuple[dict[str, Tensor], int, tuple[str, ...]]:
    """Numbers to predict, or classes.

    Args:
        values: of the column, by the file that they are from, the training file first.
        name: of the column, for messages.
        real: whether they are real numbers; if not, each value is a class.

    Returns:
        [n] for each file, float32 or int64 classes; how many outputs a network needs; the classes' names,
        none where these are 0..K-1 or there are no classes.

    Raises:
        ValueError: a value is no number, or no class: one with decimals, or one that no training example has.
    """
    if real:
        found = {
            file: torch.from_numpy(_numbers(column, name, file)).float() for file, column in values.items()
        }
        return found, 1, ()
    for file, column in values.items():
        for row, text in enumerate(_texts(column, name, file), start=1):
            if _is_decimal(text):
                raise ValueError(
                    f"Row {row} of {file} has {text!r} as its {name!r}, which is no class but a number with "
                    f"decimals; set likelihood: gaussian to predict numbers."
                )
    labels, names = numbered(values, name)
    first = next(iter(labels.values()))
    for file, own in labels.items():
        unknown = torch.nonzero(~torch.isin(own, first))
        if len(unknown):
            row = int(unknown[0, 0])
            raise ValueError(
                f"Row {row + 1} of {file} has the {name!r} {names[int(own[row])]!r}, which no training "
                f"example has; add some, or remove the row."
            )
    plain = names == tuple(map(str, range(len(names))))
    return labels, len(names), () if plain else names


def standardised(splits: Splits) -> Splits:
    """Every input brought to mean 0 and deviation 1, by numbers from the training examples alone.

    They are those of all clients' training examples together. An input that never changes becomes 0.

    Args:
        splits: of inputs [n, features] floating point.

    Raises:
        ValueError: the inputs are no such tensor.
    """
    train = splits.train.inputs
    if not isinstance(train, Tensor) or train.ndim != 2 or not train.is_floating_point():
        raise ValueError("Only inputs [n, features] of real numbers can be standardised; leave it out.")
    mean, deviation = train.double().mean(0), train.double().std(0, correction=0)
    deviation[deviation == 0] = 1.0

    def part(dataset: Dataset) -> Dataset:
        return replace(dataset, inputs=((dataset.inputs - mean) / deviation).to(train.dtype))

    parts = {name: part(dataset) for name, dataset in splits.parts().items()}
    return Splits(**parts, num_classes=splits.num_classes, classes=splits.classes)


def _numbers(column: Sequence[Any], name: str, file: str) -> Floats:
    try:
        given = np.asarray(column)
        found = np.full(len(given), np.nan) if given.dtype.kind in "mM" else given.astype(np.float64)
    except (ValueError, TypeError):
        found = np.array([_number(value) for value in column])
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        value = column[bad[0]]
        if len(bad) == len(found) and not _is_empty(value):
            raise ValueError(
                f"The column {name!r} of {file} holds no numbers, but such as {str(value)[:40]!r}: "
                f"data_options: {{client: {name}}} if it says whose a row is, {{ignore: [{name}]}} to leave "
                f"it out, or make numbers of it."
            )
        what = "is empty" if _is_empty(value) else f"is {str(value)[:40]!r}, which is no finite number"
        raise ValueError(
            f"Row {bad[0] + 1} of {file}: the column {name!r} {what}; repair the row, or leave the column "
            f"out (data_options: {{ignore: [{name}]}})."
        )
    return found


def _number(value: Any) -> float:
    try:
        return float(value)
    except (ValueError, TypeError):
        return np.nan


def _texts(column: Sequence[Any], name: str, file: str) -> list[str]:
    empty = next((row for row, value in enumerate(column, start=1) if _is_empty(value)), None)
    if empty is not None:
        raise ValueError(
            f"Row {empty} of {file}: the column {name!r} is empty; fill it in, or remove the row."
        )
    return [_text(value) for value in column]


def _text(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    return found[1] if (found := _WHOLE.fullmatch(text)) else text


def _is_empty(value: Any) -> bool:
    return (
        value is None
        or (isinstance(value, (float, np.floating)) and bool(np.isnan(value)))
        or str(value).strip() == ""
    )


def _is_decimal(text: str) -> bool:
    number = _number(text)
    return math.isfinite(number) and not number.is_integer()


def _ascending(texts: Mapping[str, Sequence[str]]) -> Any:
    whole = all(text.removeprefix("-").isdecimal() for column in texts.values() for text in column)
    return (lambda text: (int(text), text)) if whole else str
