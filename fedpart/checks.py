"""Whole numbers and lists that people hand over, refused in one sentence where they are something else."""

from collections.abc import Iterable, Mapping, Set
from numbers import Integral
from typing import Any


def check_whole(name: str, value: Any, least: int, what: str = "a whole number") -> None:
    """Refuse what is no whole number of ``least`` or more, True and False among it."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= value < 2**64:
        raise ValueError(f"{name} is {what}, at least {least}, got {value!r}.")


def is_list(value: Any) -> bool:
    """Whether it holds values in an order: a list, a tuple, an array, but no text, mapping or set."""
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping, Set))


def check_list(name: str, value: Any, of: str, such: str) -> None:
    """Refuse what is no list ``of`` something, ``such`` as an example."""
    if not is_list(value):
        raise ValueError(f"{name} is a list of {of}, such as {such}, got {value!r}; write a list.")
