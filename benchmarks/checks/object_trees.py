"""Trees of a message's parts, of any shape."""

from __future__ import annotations

from typing import Any

from fedpart.flower.workarounds.protocol import message

TOP, ObjectTree = "a" * 64, message("ObjectTree")


def names(count: int) -> list[str]:
    """So many names of objects."""
    return [f"{number:064x}" for number in range(1, count + 1)]


def broad(parts: int) -> Any:
    """A tree of so many parts, side by side."""
    return ObjectTree(object_id=TOP, children=[ObjectTree(object_id=one) for one in names(parts - 1)])


def deep(parts: int) -> Any:
    """A tree of so many parts, one within the other."""
    tree: list[Any] = []
    for name in [TOP, *names(parts - 1)][::-1]:
        tree = [ObjectTree(object_id=name, children=tree)]
    return tree[0]
