"""Networks of several sizes that share numbers: each has the leading corner of the largest one's tensors.

Numbers that the same networks have are a block, and what of a partition is in a block is a cell. Networks of
nested widths r_1 < r_2 < ... have blocks one around the other, as in HeteroFL (Diao et al. 2021).
"""

import copy
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from operator import gt

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.partition.partition import Partition
from fedpart.partition.space import Entry, ParameterSpace
from fedpart.registry import nearest


@dataclass(frozen=True)
class _Order:
    """The server's numbers by partition, then by block."""

    own: Tensor
    place: Tensor
    cells: tuple[int, ...]
    cell: Tensor
    bounds: tuple[int, ...]
    groups: tuple[int, ...] = ()


class NestedPartition(Partition):
    """How the numbers of one of the networks are divided; ``places [space.size]``: where they are among the
    largest one's, both in their own orders."""

    def __init__(self, whole: Partition, space: ParameterSpace, places: Tensor, order: _Order) -> None:
        super().__init__(space, order.bounds, whole.assignment[places], whole.default[places])
        self._order, self._whole = order, whole
        self._here = here = order.place[places]  # where its own numbers are in w
        self._own = torch.argsort(here)  # its own numbers, as they come in w
        self._there = here[self._own]  # where that is in w
        counts = torch.bincount(self.assignment.long(), minlength=whole.chunks + 1)
        self._ends: list[int] = counts.cumsum(0).tolist()  # of w_1..w_C among them
        numbers, sizes = torch.unique_consecutive(order.cell[self._there], return_counts=True)
        self._sizes: dict[int, dict[int, int]] = {j: {} for j in range(1, whole.chunks + 1)}
        for number, size in zip(numbers.tolist(), sizes.tolist(), strict=True):
            self._sizes[bisect_right(order.bounds, order.cells[number - 1])][number] = size
        self._copies: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}
        self._parts: dict[NestedPartition, Tensor] = {}
        self._travels = self  # what of it does

    @property
    def cells(self) -> tuple[int, ...]:
        return self._order.cells

    @property
    def group_of(self) -> tuple[int, ...]:
        return self._order.groups

    def in_cells(self, j: int, w_j: Tensor) -> dict[int, Tensor]:
        sizes = self._sizes[j]
        return dict(zip(sizes, torch.split(w_j, list(sizes.values())), strict=True))

    def cell_sizes(self, j: int) -> dict[int, int]:
        return self._travels._sizes[j]

    @property
    def needed(self) -> int:
        return len(self._travels._there)

    def of_server(self, w: Tensor) -> Tensor:
        return w.index_select(0, self._travels._on(w.device)[1])

    def for_client(self, part: Tensor) -> Tensor:
        zeros = torch.zeros(self.bounds[-1], dtype=part.dtype, device=part.device)
        w = zeros if self._travels is self else self.initial().to(part)
        return w.index_copy_(0, self._travels._on(part.device)[1], part)

    def has(self, other: Partition) -> bool:
        return isinstance(other, NestedPartition) and bool(torch.isin(other._there, self._there).all())

    def places(self, other: Partition) -> Tensor:
        if not isinstance(other, NestedPartition):
            raise TypeError("A network of one of several sizes has parts that are such networks, too.")
        if other not in self._parts:
            place = torch.empty(self.bounds[-1], dtype=torch.int64).index_copy_(0, self._there, self._own)
            self._parts[other] = torch.empty_like(other._own).index_copy_(0, other._own, place[other._there])
        return self._parts[other]

    def initial(self) -> Tensor:
        return self._whole.space.initial()[self._order.own]

    def subnetwork(self, w: Tensor, k: int) -> Tensor:
        if not 0 <= k <= self.chunks:
            raise ValueError(f"Subnetworks are numbered 0 (defaults alone) to {self.chunks}, got {k}.")
        (places, in_w, inverse), head = self._on(w.device), self._ends[k]
        if k == self.chunks:
            return w.index_select(0, inverse)
        return self.default.to(w).index_copy(0, places[:head], w.index_select(0, in_w[:head]))

    def take(self, own: Tensor, j: int, k: int) -> Tensor:
        return own.index_select(-1, self._places_of(j, own.device))

    def put(self, own: Tensor, j: int, k: int, w_j: Tensor) -> Tensor:
        return own.index_copy(-1, self._places_of(j, own.device), w_j)

    def _places_of(self, j: int, device: torch.device) -> Tensor:
        return self._on(device)[0][self._ends[j - 1] : self._ends[j]]

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Its own numbers as they come in w, where that is, and its inverse, copied to ``device`` once."""
        if device not in self._copies:
            self._copies[device] = self._own.to(device), self._there.to(device), self._here.to(device)
        return self._copies[device]


def nested(whole: Partition, spaces: Sequence[ParameterSpace]) -> list[NestedPartition]:
    """The partitions of several networks that share their numbers, at most 50. ``whole`` is of the largest
    network's numbers, or of all networks': see :func:`united`."""
    require(len(spaces) <= 50, f"There are {len(spaces)} networks of different sizes; use 50 at most.")
    size = whole.space.size
    places = [leading(whole.space, labelled(space, index)) for index, space in enumerate(spaces)]
    who = torch.zeros(size, dtype=torch.int64)  # which networks have a number, a bit for each
    for index, place in enumerate(places):
        who[place] += 1 << index
    cell = whole.assignment.long() * (1 << len(spaces)) - who  # those that all have come first
    if whole.groups is not None:  # within a block
        cell = torch.unique(cell, return_inverse=True)[1] * (int(whole.groups.max()) + 1) + whole.groups
    ordered = torch.argsort(cell, stable=True)
    _, numbers, counts = torch.unique_consecutive(cell[ordered], return_inverse=True, return_counts=True)
    bounds = torch.bincount(whole.assignment.long(), minlength=whole.chunks + 1).cumsum(0)
    cells = (0, *counts.cumsum(0).tolist())
    order = _Order(
        ordered,
        torch.empty_like(ordered).index_copy_(0, ordered, torch.arange(size)),
        cells,
        numbers + 1,
        tuple(bounds.tolist()),
        () if whole.groups is None else tuple(whole.groups[ordered[list(cells[:-1])]].tolist()),
    )
    return [NestedPartition(whole, space, place, order) for space, place in zip(spaces, places, strict=True)]


def with_personal(whole: Partition, names: Collection[str]) -> Partition:
    """``whole``, whose parameters ``names`` are in cells of their own that do not travel, and have their
    initial values wherever nobody has kept others; of none ``whole`` itself."""
    if not names:
        return whole
    rest = copy.copy(whole.space)
    rest.entries = tuple(entry for entry in rest.entries if entry.name not in names)
    require(rest.entries, "All weights would stay with clients, so that nothing is shared; keep fewer.")
    spaces = [copy.copy(space) for space in (whole.space, rest)]
    for space in spaces:  # they are of one network, so that nothing is private
        space.entries = tuple(replace(entry, private=False) for entry in space.entries)
    network, network._travels = nested(whole, spaces)
    return network


def leading(whole: ParameterSpace, part: Sequence[Entry]) -> Tensor:
    """Where the numbers of ``part`` are among those of ``whole``, ``[size of the part]`` int64, both in their
    own orders: each tensor is a leading corner."""
    entries, places = {entry.name: entry for entry in whole.entries}, []
    for entry in part:
        if entry.name not in entries:
            fault = f"A smaller network has a parameter {entry.name!r}"
            raise ValueError(f"{fault}, which the largest one lacks: {nearest(entry.name, entries)}")
        large = entries[entry.name]
        if len(large.shape) != len(entry.shape) or any(map(gt, entry.shape, large.shape)):
            raise ValueError(
                f"The parameter {entry.name!r} of a smaller network has the shape {list(entry.shape)}, which "
                f"is no part of the largest one's {list(large.shape)}; the largest network must be the "
                f"largest in every dimension."
            )
        at = torch.arange(large.offset, large.offset + large.size).view(large.copies, *large.shape)
        places.append(at[(slice(None), *map(slice, entry.shape))].reshape(-1))
    return torch.cat(places)


def labelled(space: ParameterSpace, index: int) -> list[Entry]:
    """The entries of a network under names that are different for every network, where they are private."""
    of = f"{index}:"
    return [replace(e, name=of + e.name, layer=of + e.layer) if e.private else e for e in space.entries]


def has_private(spaces: Sequence[ParameterSpace]) -> bool:
    """Whether some network has numbers that the others do not have."""
    return any(entry.private for space in spaces for entry in space.entries)


def united(spaces: Sequence[ParameterSpace]) -> ParameterSpace:
    """All numbers of several networks, to be partitioned as one network's; what two of them have under one
    name is there once, from the first of those that have most of it."""
    chosen: dict[str, tuple[Entry, Tensor]] = {}
    for index, space in enumerate(spaces):
        values = torch.split(space.initial(), [entry.size for entry in space.entries])
        for entry, numbers in zip(labelled(space, index), values, strict=True):
            if entry.name not in chosen or entry.size > chosen[entry.name][0].size:
                chosen[entry.name] = entry, numbers
    whole, entries, offset = copy.copy(spaces[0]), list[Entry](), 0
    for entry, _ in chosen.values():
        entries.append(replace(entry, offset=offset))
        offset += entry.size
    whole.entries, whole.size = tuple(entries), offset
    whole._sizes = [entry.size for entry in entries]
    whole._initial = torch.cat([numbers for _, numbers in chosen.values()])
    return whole
