"""Trees: a tensor, or dicts, tuples and lists of trees; every tensor has examples in its first dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any  # a Tensor, or a dict, tuple or list of trees


def leaves(tree: Tree, name: str = "") -> Iterator[tuple[str, Any]]:
    """What is no dict, tuple or list, with its place: ``inputs['mask']``, ``inputs[1]``."""
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from leaves(part, f"{name}[{key!r}]")
    elif isinstance(tree, (tuple, list)):
        for place, part in enumerate(tree):
            yield from leaves(part, f"{name}[{place}]")
    else:
        yield name, tree


def map_leaves(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The tree of ``function``'s values at each leaf; further trees are of the same form.

    Mappings become dicts.
    """
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, Mapping):
        return {
            key: map_leaves(function, part, *(other[key] for other in others)) for key, part in tree.items()
        }
    if isinstance(tree, (tuple, list)):
        parts = [map_leaves(function, *same) for same in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree, *others)


def joined(trees: Sequence[Tree]) -> Tree:
    """The examples of several trees of one form, one after the other."""
    return map_leaves(lambda *parts: torch.cat(parts), *trees)


def first_leaf(tree: Tree) -> Tensor:
    """The first tensor, which tells how many examples there are, and where."""
    while not isinstance(tree, Tensor):
        tree = next(iter(tree.values() if isinstance(tree, Mapping) else tree))
    return tree
