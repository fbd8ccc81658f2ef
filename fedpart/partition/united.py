"""The numbers of several networks as one space: what they share once, and what is private of each."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch

from fedpart.partition.space import Entry, ParameterSpace


def labelled(space: ParameterSpace, index: int) -> list[Entry]:
    """The entries of a network under names that are different for every network, where they are private."""
    return [
        replace(entry, name=f"{index}:{entry.name}", layer=f"{index}:{entry.layer}")
        if entry.private
        else entry
        for entry in space.entries
    ]


def has_private(spaces: Sequence[ParameterSpace]) -> bool:
    """Whether some network has numbers that the others do not have."""
    return any(entry.private for space in spaces for entry in space.entries)


def united(spaces: Sequence[ParameterSpace]) -> ParameterSpace:
    """All numbers of several networks, to be partitioned as one network's; it makes no tensors.

    What two of them have under one name is there once, from the first of those that have most of it.

    Args:
        spaces: of the networks, for as many partitions each.
    """
    found: dict[str, tuple[Entry, torch.Tensor]] = {}
    for index, space in enumerate(spaces):
        values = torch.split(space.initial(), [entry.size for entry in space.entries])
        for entry, own in zip(labelled(space, index), values, strict=True):
            if entry.name not in found or entry.size > found[entry.name][0].size:
                found[entry.name] = entry, own
    whole, entries, offset = copy.copy(spaces[0]), list[Entry](), 0
    for entry, _ in found.values():
        entries.append(replace(entry, offset=offset))
        offset += entry.size
    whole.entries, whole.size = tuple(entries), offset
    whole._sizes = [entry.size for entry in entries]
    whole._initial = torch.cat([own for _, own in found.values()])
    return whole
