"""Partitions of one network, given by the partition that each of its numbers is assigned to."""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedpart.partition.partition import Partition
from fedpart.partition.proportions import check_proportions, largest_remainders
from fedpart.partition.space import ParameterSpace
from fedpart.randomness.streams import generator

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
        self,
        space: ParameterSpace,
        proportions: Sequence[float],
        assignment: Tensor,
        defaults: Defaults = "initial",
    ) -> None:
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
        self,
        space: ParameterSpace,
        proportions: Sequence[float],
        *,
        defaults: Defaults = "initial",
        seed: int = 0,
    ) -> None:
        u = proportions_of(space, proportions)
        super().__init__(space, u, _random_assignment(space, u, seed), defaults)


def proportions_of(space: ParameterSpace, proportions: Sequence[float]) -> tuple[float, ...]:
    """Proportions of the parameters of ``space``, checked."""
    u = check_proportions(proportions, "parameter proportions")
    if space.chunks != len(u):
        raise ValueError(
            f"The space was made for {space.chunks} chunks, but there are {len(u)} parameter proportions."
        )
    return u


def _random_assignment(space: ParameterSpace, proportions: tuple[float, ...], seed: int) -> Tensor:
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
        assignment[places[torch.from_numpy(shuffle)]] = labels(len(places), proportions)
    return assignment


def labels(total: int, proportions: Sequence[float]) -> Tensor:
    """``[total]`` uint8: ones, twos and so on, as many of each partition as its share, ascending."""
    counts = torch.tensor(largest_remainders(total, proportions))
    return torch.repeat_interleave(torch.arange(1, len(counts) + 1, dtype=torch.uint8), counts)
