"""What can be compared of the values that a network holds, and how containers hold again what they held."""

import ctypes
import io
import itertools
import operator
import random
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedpart.trees import version_of

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
STATES: dict[type, Callable[[Any], str]] = {
    torch.Generator: lambda rng: str(rng.get_state().tolist()),
    np.random.Generator: lambda rng: str(rng.bit_generator.state),
    np.random.RandomState: lambda rng: str(rng.get_state(legacy=False)),
    random.Random: lambda rng: str(rng.getstate()),
}
_MANY = 1000  # parts of a set that is compared
_MISSING = object()


class Drawn(NamedTuple):
    """A generator's state."""

    state: str


class Advancing(NamedTuple):
    """An iterator, and how far it is where that can be seen."""

    identity: int
    state: str


@dataclass(eq=False)
class Order:
    """The keys of a dict, in their order; it is the same where others have come behind them."""

    keys: tuple[str, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order) and all(map(str.__eq__, self.keys, other.keys))


@dataclass
class Numbers:
    """A tensor, or an array: which one, how often it was written to, and what it holds."""

    identity: int
    version: int
    held: Any = field(compare=False)


def is_power_of_two(count: int) -> bool:
    """Whether it is the 1st, 2nd, 4th, 8th, ... time: then what a condition may hide is looked for again."""
    return count & (count - 1) == 0


def comparable(value: Any) -> Any:
    """What tells whether a value has changed; None of what is no number, state or text in itself."""
    for kind, state in STATES.items():
        if isinstance(value, kind):
            return Drawn(state(value))
    if isinstance(value, Tensor):
        return Numbers(id(value), version_of(value), value)
    if isinstance(value, np.ndarray):
        return Numbers(id(value), hash(value.tobytes()), value)
    if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
        return Advancing(id(value), repr(value) if isinstance(value, itertools.count) else "")
    if isinstance(value, (bytearray, array)):
        return bytes(value)
    if isinstance(value, ctypes._SimpleCData):
        return str(value.value)
    if isinstance(value, (set, frozenset)):
        return frozenset(value) if len(value) < _MANY else len(value)
    return None


def filled(held: Any, number: int) -> Any:
    """A tensor or an array like ``held``, of another number: as large as its type goes."""
    if isinstance(held, np.ndarray):
        most = np.iinfo(held.dtype).max if held.dtype.kind in "iu" else number
        return np.full_like(held, min(number, most)) if held.dtype.kind in "iufcO" else np.zeros_like(held)
    if held.dtype == torch.bool:
        return torch.full_like(held.detach(), bool(number % 2))
    limit: Any = torch.finfo(held.dtype) if held.is_floating_point() else None
    if limit is None and not held.is_complex():
        limit = torch.iinfo(held.dtype)
    return torch.full_like(held.detach(), number if limit is None else min(number, limit.max))


def is_datum(key: str, value: Any) -> bool:
    """Whether a class holds a value of that name, and no method."""
    return not key.startswith("__") and not hasattr(value, "__get__") and not isinstance(value, type)


def refill(container: Any, before: Any) -> None:
    """Have a container hold what a copy of it holds."""
    same = isinstance(container, dict) and container.keys() == before.keys()
    parts = (container.values(), before.values()) if same else (container, before)
    if len(container) == len(before) and all(map(operator.is_, *parts)):
        return
    container.clear()
    container.extend(before) if isinstance(container, (list, deque)) else container.update(before)


def reset(kind: type, before: Mapping[str, Any]) -> None:
    """Have a class hold what it held."""
    for key, value in [*vars(kind).items()]:
        if key not in before and is_datum(key, value):
            delattr(kind, key)
    for key, value in before.items():
        if vars(kind).get(key, _MISSING) is not value:
            setattr(kind, key, value)


def rename(held: dict[str, Any], names: frozenset[str], before: Mapping[str, Any]) -> None:
    """Have the names of a module stand for what they stood for."""
    for name in names & held.keys() - before.keys():
        del held[name]
    held.update(before)
