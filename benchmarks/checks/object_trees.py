"""Trees of a message's parts, of any shape."""

from __future__ import annotations

from flwr.proto.message_pb2 import ObjectTree

TOP = "a" * 64


def names(count: int) -> list[str]:
    """So many names of objects."""
    return [f"{number:064x}" for number in range(1, count + 1)]


def broad(parts: int) -> ObjectTree:
    """A tree of so many parts, side by side."""
    return ObjectTree(object_id=TOP, children=[ObjectTree(object_id=one) for one in names(parts - 1)])


def deep(parts: int) -> ObjectTree:
    """A tree of so many parts, one within the other."""
    tree: list[ObjectTree] = []
    for name in [TOP, *names(parts - 1)][::-1]:
        tree = [ObjectTree(object_id=name, children=tree)]
    return tree[0]
