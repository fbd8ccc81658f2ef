"""Numbers of 64 bits that are computed with in 32: what would become one is refused."""

import re
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray

from fedpart.data.dataset import Dataset
from fedpart.trees import leaves

Floats = NDArray[np.float64]
OTHER_UNIT = "write it in another unit, or subtract a constant"
_MOST = 2**24  # numbers of a tensor that are looked at, but never fewer than 1000 rows
_SEEN: WeakSet[Dataset] = WeakSet()


def check_examples(data: Dataset, dtype: torch.dtype) -> None:
    """Refuse float64 inputs and targets of which ``dtype`` makes equal ones; a data set is looked at once."""
    if dtype == torch.float64 or data in _SEEN:
        return
    for kind in ("inputs", "targets"):
        for name, leaf in leaves(vars(data).get(kind, ()), kind):  # images that are not decoded have 32 bits
            if leaf.dtype == torch.float64:
                way_out = f"{OTHER_UNIT}, or compute with Task(module, precision='fp64')"
                check_positions(leaf.cpu().numpy(), f"Dataset {name}", way_out)
    _SEEN.add(data)


def check_positions(numbers: Floats, what: str, way_out: str) -> None:
    """:func:`check_float32` at each position of an example.

    Args:
        numbers: [n, ...]; what is not finite is for others to refuse.
        what, way_out: of the message, which adds the position.
    """
    if np.array_equal(_float32(numbers), numbers) or not np.isfinite(numbers).all():
        return
    rows = numbers.reshape(len(numbers), -1)
    for place, column in enumerate(rows[: max(1000, _MOST // rows.shape[1])].T):
        position = ", ".join(map(str, np.unravel_index(place, numbers.shape[1:]))) if numbers.ndim > 1 else ""
        check_float32(column, f"{what}[:, {position}]" if position else what, way_out)


def check_float32(numbers: Floats, what: str, way_out: str) -> None:
    """Refuse numbers that float32 cannot hold, or of which it makes equal ones.

    Whole numbers must all stay apart. Of others, those may meet that lie closer together than 1e-4 of what
    the middle half of the values spans, as numbers with 16 digits do by chance.

    Args:
        numbers: [n] finite.
        what, way_out: of the message.

    Raises:
        ValueError: names two such values.
    """
    if np.array_equal(rounded := _float32(numbers), numbers):
        return
    if not np.isfinite(rounded).all():
        raise ValueError(
            f"{what} holds {numbers[~np.isfinite(rounded)][0]:g}, too large for float32; {way_out}."
        )
    values = np.unique(numbers)
    gaps = np.diff(values)
    apart = 8 * np.spacing(np.abs(values[1:]))
    if (values % 1).any():
        apart = np.maximum(apart, 1e-4 * np.subtract(*np.percentile(values, (75, 25))))
    met = np.flatnonzero((np.diff(_float32(values)) == 0) & (gaps > apart))
    if len(met):
        pair = " and ".join(f"{values[at]!s}" for at in (met[0], met[0] + 1))
        raise ValueError(f"{what} has values that are one in float32, such as {pair}; {way_out}.")


def one_in_float64(column: Sequence[Any], numbers: Floats) -> str | None:
    """Two long whole numbers, as identifiers are, that are the same number here; None if there are none."""
    known: dict[float, int] = {}
    for row in map(int, np.flatnonzero(np.abs(numbers) >= 2**53)):
        text = str(column[row]).strip()
        if re.fullmatch(r"[-+]?\d+", text) and known.setdefault(numbers[row], int(text)) != int(text):
            return f"{known[numbers[row]]} and {text}"
    return None


def _float32(numbers: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32).astype(np.float64)
