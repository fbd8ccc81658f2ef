"""Partition: how a network's trainable numbers are divided among w_1..w_C (Section 3).

In partition order w_1..w_C are consecutive slices of one vector: an upload of w_k..w_C is a contiguous tail,
and subnetwork k is made of the head w_1..w_k. Partitions, chunks and subnetworks are numbered 1..C.
"""

import builtins
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.partition.proportions import check_proportions, largest_remainders
from fedpart.partition.space import ParameterSpace
from fedpart.randomness.streams import generator


class Partition(ABC):
    """What methods, engines and states ask of a division of the parameters; implementations are beside it.

    It is a function of seed, shapes and settings: regenerated everywhere, never sent.

    Args:
        space: the trainable numbers of one network.
        bounds: C + 1 offsets; partition k is ``w[bounds[k-1]:bounds[k]]`` in partition order.
        assignment: ``[size]`` uint8, the partition (1..C) of each number in the module's own order.
        default: ``[size]``, values of what a subnetwork does not contain, in the module's own order.

    Attributes:
        groups: ``[size]`` int64 0.., in the module's own order: numbers of different groups are in different
            cells, where clients have networks of different sizes; None: there is one group.
    """

    groups: Tensor | None = None

    def __init__(
        self, space: ParameterSpace, bounds: tuple[int, ...], assignment: Tensor, default: Tensor
    ) -> None:
        self.space, self.bounds, self.assignment, self.default = space, bounds, assignment, default

    @property
    def chunks(self) -> int:
        """C, the number of partitions."""
        return len(self.bounds) - 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of elements of each partition, C of them."""
        return tuple(b - a for a, b in zip(self.bounds, self.bounds[1:], strict=False))

    def slice(self, k: int) -> builtins.slice:
        """Where w_k lies in partition order."""
        return builtins.slice(self.bounds[k - 1], self.bounds[k])

    @property
    def cells(self) -> tuple[int, ...]:
        """Offsets in w of what is averaged and stepped by itself: w_1..w_C, or parts of them where clients
        have several networks, in their order, numbered 1..."""
        return self.bounds

    @property
    def group_of(self) -> tuple[int, ...]:
        """The group of each cell, see :attr:`groups`; empty: there is one."""
        return ()

    def in_cells(self, j: int, w_j: Tensor) -> dict[int, Tensor]:
        """w_j of this network by the numbers of its cells, ascending; views."""
        return {j: w_j}

    def cell_sizes(self, j: int) -> dict[int, int]:
        """Numbers of elements of the cells of w_j, ascending."""
        return {j: self.sizes[j - 1]}

    @property
    def needed(self) -> int:
        """How many of the server's numbers a client with this network needs."""
        return self.bounds[-1]

    def of_server(self, w: Tensor) -> Tensor:
        """Those of ``w [bounds[C]]``, ``[needed]``, in their order."""
        return w

    def for_client(self, part: Tensor) -> Tensor:
        """Inverse of :meth:`of_server`; the others are 0."""
        return part

    def has(self, other: "Partition") -> bool:
        """Whether the network of ``other`` is a part of this one."""
        return other is self

    def places(self, other: "Partition") -> Tensor:
        """``[other.space.size]``: where the other's numbers are among this network's, in their own orders."""
        return torch.arange(self.space.size)

    def space_of(self, k: int) -> ParameterSpace:
        """The numbers of subnetwork ``k``: :attr:`space`, or those of a network of fewer units."""
        return self.space

    def stacked(self) -> list[Tensor]:
        """For each j the places ``[m]`` in w_j of copies of stacked scales and biases (App. I.2), of which
        there must be some."""
        masks = (self.take(self.space_of(j).stacked(), j, j) for j in range(1, self.chunks + 1))
        places = [mask.nonzero().flatten() for mask in masks]
        require(any(map(len, places)), "The network has no stacked scales and biases; leave scalars out.")
        return places

    @abstractmethod
    def initial(self) -> Tensor:
        """The initial values in partition order, ``[bounds[C]]``."""

    @abstractmethod
    def subnetwork(self, w: Tensor, k: int) -> Tensor:
        """w_s^(k), ``[n]`` in the module's own order, the numbers of ``space_of(k)``: partitions 1..k from
        ``w [bounds[C]]`` in partition order, the rest at their defaults; 0 is the network of default values.
        It may be a view of ``w``."""

    @abstractmethod
    def take(self, own: Tensor, j: int, k: int) -> Tensor:
        """The elements of w_j from vectors ``[..., n]`` of subnetwork ``k``, see :meth:`subnetwork`."""

    @abstractmethod
    def put(self, own: Tensor, j: int, k: int, w_j: Tensor) -> Tensor:
        """``own [..., n]``, of subnetwork ``k``, with the elements of w_j replaced; a copy."""

    def materialise(self, w: Tensor, k: int) -> dict[str, Tensor]:
        """Named tensors of subnetwork ``k``, for ``torch.func.functional_call``; see :meth:`subnetwork`."""
        return self.space_of(k).tensors(self.subnetwork(w, k))


class SeparateNetworks(Partition):
    """C = ``count`` networks: w_k is network k, and subnetwork k that network alone (Section 5, Figure 3)."""

    def __init__(self, space: ParameterSpace, count: int = 1) -> None:
        bounds = tuple(k * space.size for k in range(count + 1))
        super().__init__(space, bounds, torch.ones(space.size, dtype=torch.uint8), space.initial())

    def initial(self) -> Tensor:
        return self.space.initial().repeat(self.chunks)

    def subnetwork(self, w: Tensor, k: int) -> Tensor:
        return self.default.to(w) if k == 0 else w[self.slice(k)]

    def take(self, own: Tensor, j: int, k: int) -> Tensor:
        return own

    def put(self, own: Tensor, j: int, k: int, w_j: Tensor) -> Tensor:
        return w_j


Defaults = Literal["initial", "zeros"]


class AssignedPartition(Partition):
    """Each number of the network belongs to one of C partitions; they are permuted into partition order.

    Args:
        space: the trainable numbers; ``space.chunks`` must be C.
        proportions: u_1..u_C of the parameters, summing to 1.
        assignment: ``[size]`` uint8, the partition (1..C) of each number in the module's own order; none is
            empty.
        defaults: values of partitions that a subnetwork does not contain: the ``initial`` ones, or ``zeros``.
    """

    def __init__(
        self, space: ParameterSpace, proportions: Sequence[float], assignment: Tensor,
        defaults: Defaults = "initial",
    ) -> None:  # fmt: skip
        if defaults not in ("initial", "zeros"):
            raise ValueError(f"Unknown default values {defaults!r}; choose initial or zeros.")
        default = space.initial() if defaults == "initial" else space.identity()
        counts = torch.bincount(assignment.long() - 1, minlength=len(proportions)).tolist()
        if 0 in counts:
            empty = counts.index(0)
            raise ValueError(
                f"Partition {empty + 1} of {len(counts)} is empty in the whole model: its share "
                f"{proportions[empty]:g} of {space.size} parameters is too small; use fewer chunks or a "
                f"larger share."
            )
        super().__init__(space, (0, *torch.tensor(counts).cumsum(0).tolist()), assignment, default)
        self._places: dict[tuple[int, torch.device], Tensor] = {}

    @cached_property
    def order(self) -> Tensor:
        """The permutation P: ``w = own[order]``; ``[size]`` int64."""
        return torch.argsort(self.assignment, stable=True)

    def initial(self) -> Tensor:
        return self.to_partition_order(self.space.initial())

    def to_partition_order(self, own: Tensor) -> Tensor:
        """A flat vector ``[size]`` from the module's own order into partition order."""
        return own.index_select(0, self.order.to(own.device))

    def to_own_order(self, w: Tensor) -> Tensor:
        """A flat vector ``[size]`` from partition order into the module's own order."""
        return torch.empty_like(w).index_copy_(0, self.order.to(w.device), w)

    def subnetwork(self, w: Tensor, k: int) -> Tensor:
        if not 0 <= k <= self.chunks:
            raise ValueError(f"Subnetworks are numbered 0 (defaults alone) to {self.chunks}, got {k}.")
        head, default = self.bounds[k], self.default[: self.space_of(k).size]
        return default.to(w).index_copy(0, self._places_of(k, w.device)[:head], w[:head])

    def take(self, own: Tensor, j: int, k: int) -> Tensor:
        return own.index_select(-1, self._places_of(k, own.device)[self.slice(j)])

    def put(self, own: Tensor, j: int, k: int, w_j: Tensor) -> Tensor:
        return own.index_copy(-1, self._places_of(k, own.device)[self.slice(j)], w_j)

    def _places_of(self, k: int, device: torch.device) -> Tensor:
        """:attr:`order` of vectors of subnetwork ``k`` on ``device``, made and copied there once."""
        size = self.space_of(k).size
        if (size, device) not in self._places:
            order = self.order[:size]
            if size < self.space.size:  # numbered among what is there
                order = ((self.assignment <= k).cumsum(0) - 1)[order]
            self._places[size, device] = order.to(device)
        return self._places[size, device]


class RandomPartition(AssignedPartition):
    """In each layer (weight and bias together) u_k of the elements, drawn at random (App. C).

    Args:
        space: the trainable numbers; ``space.chunks`` must be C.
        proportions: u_1..u_C, held in each layer to within one element.
        defaults: see :class:`.AssignedPartition`.
        seed: of the draw.

    Raises:
        ValueError: bad proportions, or see :class:`.AssignedPartition`.
    """

    def __init__(
        self, space: ParameterSpace, proportions: Sequence[float], *, defaults: Defaults = "initial",
        seed: int = 0,
    ) -> None:  # fmt: skip
        u = proportions_of(space, proportions)
        assignment = torch.zeros(space.size, dtype=torch.uint8)
        layers: dict[str, list[Tensor]] = {}
        for entry in space.entries:
            if entry.fold is None:
                places = torch.arange(entry.offset, entry.offset + entry.size)
                layers.setdefault(entry.layer, []).append(places)
            else:
                owners = torch.arange(1, entry.copies + 1, dtype=torch.uint8)  # copy k belongs to partition k
                owners = owners.repeat_interleave(entry.shape.numel())
                assignment[entry.offset : entry.offset + entry.size] = owners
        for index, places_of_layer in enumerate(layers.values()):
            places = torch.cat(places_of_layer)
            shuffle = generator(seed, "partition", index).permutation(len(places))
            assignment[places[torch.from_numpy(shuffle)]] = labels(len(places), u)
        super().__init__(space, u, assignment, defaults)


def proportions_of(space: ParameterSpace, proportions: Sequence[float]) -> tuple[float, ...]:
    """Proportions of the parameters of ``space``, checked."""
    u = check_proportions(proportions, "parameter proportions")
    if space.chunks != len(u):
        raise ValueError(
            f"The space was made for {space.chunks} chunks, but there are {len(u)} parameter proportions."
        )
    return u


def labels(total: int, proportions: Sequence[float]) -> Tensor:
    """``[total]`` uint8: ones, twos and so on, as many of each partition as its share, ascending."""
    counts = torch.tensor(largest_remainders(total, proportions))
    return torch.repeat_interleave(torch.arange(1, len(counts) + 1, dtype=torch.uint8), counts)
