"""Which trainable number belongs to which partition, and the flat vector in partition order.

In partition order (the permutation P of Section 3) w_1..w_C are consecutive slices: an upload of w_k..w_C is
a contiguous tail, and subnetwork k is the trained head w_1..w_k followed by the default values of the rest.
Partitions, chunks and subnetworks are numbered 1..C.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from fedpart.parameters.nodes import narrower_spaces, node_assignment
from fedpart.parameters.space import ParameterSpace, largest_remainders
from fedpart.randomness.streams import generator

Scheme = Literal["random", "node"]
Defaults = Literal["initial", "zeros"]


def check_proportions(proportions: Collection[float], what: str = "chunk proportions") -> tuple[float, ...]:
    """The proportions as a tuple of floats.

    Raises:
        ValueError: fewer than one or more than 255 of them, one that is not positive, or a sum other than 1.
    """
    if isinstance(proportions, (int, float, str)):
        raise ValueError(f"The {what} are one number per chunk, (0.8, 0.1, 0.1) say, got {proportions!r}.")
    u = tuple(float(p) for p in proportions)
    if not 1 <= len(u) < 256:
        raise ValueError(f"There must be between 1 and 255 {what}, got {len(u)}.")
    if any(not (math.isfinite(p) and p > 0) for p in u):
        raise ValueError(f"All {what} must be positive numbers, got {list(u)}.")
    if abs(sum(u) - 1) > 1e-6:
        raise ValueError(f"The {what} must sum to 1, but {list(u)} sums to {sum(u):g}.")
    return u


class Partition:
    """An assignment of every trainable number of a :class:`ParameterSpace` to one of C partitions.

    The assignment is a function of (seed, shapes, proportions): it is regenerated, never sent.

    Args:
        space: the trainable numbers; ``space.chunks`` must be C.
        proportions: u_1..u_C of the parameters, summing to 1.
        scheme: ``random``: in each layer (weight and bias together) u_k of the elements, drawn at random, to
            within one element (App. C). ``node``: units of each layer are assigned in proportion u, and a
            weight belongs to the later of its input's and output's partitions (Fig. 4b); needs ``module``.
        defaults: values of partitions that a subnetwork does not contain: the ``initial`` ones, or ``zeros``.
            With ``node`` and ``zeros``, subnetworks of an nn.Sequential without ``chain`` have the shapes of
            networks of fewer units, see :func:`.narrower_spaces`.
        seed: of the random assignment.
        module, chain: for ``node``: the module, an nn.Sequential, or the names of its Linear and Conv layers
            in the order in which data flows through them.

    Attributes:
        assignment: ``[size]`` uint8, the partition (1..C) of each element in the module's own order.
        bounds: C + 1 offsets; partition k is ``w[bounds[k-1]:bounds[k]]`` in partition order.
        default: ``[size]``, default values in the module's own order.

    Raises:
        ValueError: bad proportions, a partition that is empty in the whole model, or a module whose chain is
            not known.
    """

    def __init__(
        self,
        space: ParameterSpace,
        proportions: Sequence[float],
        *,
        scheme: Scheme = "random",
        defaults: Defaults = "initial",
        seed: int = 0,
        module: nn.Module | None = None,
        chain: Sequence[str] | None = None,
    ) -> None:
        self.space = space
        self.proportions = check_proportions(proportions, "parameter proportions")
        self.chunks = len(self.proportions)
        if space.chunks != self.chunks:
            raise ValueError(
                f"The parameter space was made for {space.chunks} chunks, but there are {self.chunks} "
                f"parameter proportions; make it with chunks={self.chunks}."
            )
        if scheme == "random":
            self.assignment = _random_assignment(space, self.proportions, seed)
        elif scheme == "node":
            if module is None:
                raise ValueError(
                    "Node partitioning needs the module: Partition(..., scheme='node', module=...)."
                )
            self.assignment = node_assignment(space, module, self.proportions, seed, chain)
        else:
            raise ValueError(f"Unknown partitioning scheme {scheme!r}; choose random or node.")
        if defaults not in ("initial", "zeros"):
            raise ValueError(f"Unknown default values {defaults!r}; choose initial or zeros.")
        self.default = space.initial() if defaults == "initial" else space.identity()

        counts = torch.bincount(self.assignment.long() - 1, minlength=self.chunks).tolist()
        if 0 in counts:
            empty = counts.index(0)
            raise ValueError(
                f"Partition {empty + 1} of {self.chunks} is empty in the whole model: its share "
                f"{self.proportions[empty]:g} of {space.size} parameters is too small; use fewer chunks or a "
                f"larger share."
            )
        self.bounds: tuple[int, ...] = (0, *torch.tensor(counts).cumsum(0).tolist())
        self._narrower: dict[int, ParameterSpace] = {}
        if scheme == "node" and defaults == "zeros" and module is not None and chain is None:
            self._narrower = narrower_spaces(space, module, self.assignment)
        self._places: dict[tuple[int, torch.device], Tensor] = {}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of elements of each partition, C of them."""
        return tuple(b - a for a, b in zip(self.bounds, self.bounds[1:], strict=False))

    def slice(self, k: int) -> builtins.slice:
        """Where w_k lies in partition order."""
        return builtins.slice(self.bounds[k - 1], self.bounds[k])

    def tail(self, k: int) -> builtins.slice:
        """Where w_k..w_C lie in partition order: what a client of chunk k uploads."""
        return builtins.slice(self.bounds[k - 1], self.bounds[-1])

    @cached_property
    def order(self) -> Tensor:
        """The permutation P: ``w = own[order]``; ``[size]`` int64."""
        return torch.argsort(self.assignment, stable=True)

    def initial(self) -> Tensor:
        """The module's initial values in partition order, ``[size]``."""
        return self.to_partition_order(self.space.initial())

    def space_of(self, k: int) -> ParameterSpace:
        """Of subnetwork ``k``: :attr:`space`, or that of a network of fewer units."""
        return self._narrower.get(k, self.space)

    def take(self, own: Tensor, j: int, k: int) -> Tensor:
        """The elements of w_j from vectors ``[..., n]`` of subnetwork ``k``, see :meth:`subnetwork`."""
        if self.chunks == 1:
            return own
        return own.index_select(-1, self._places_of(k, own.device)[self.slice(j)])

    def select(self, own: list[Tensor], j: int, k: int) -> list[Tensor]:
        """:meth:`take` of a vector that comes in flat pieces, and goes in them."""
        return own if self.chunks == 1 else [self.take(torch.cat(own), j, k)]

    def put(self, own: Tensor, j: int, k: int, w_j: Tensor) -> Tensor:
        """``own [..., n]``, of subnetwork ``k``, with the elements of w_j replaced; a copy."""
        if self.chunks == 1:
            return w_j
        return own.index_copy(-1, self._places_of(k, own.device)[self.slice(j)], w_j)

    def to_partition_order(self, own: Tensor) -> Tensor:
        """A flat vector ``[size]`` from the module's own order into partition order."""
        return own.index_select(0, self.order.to(own.device))

    def to_own_order(self, w: Tensor) -> Tensor:
        """A flat vector ``[size]`` from partition order into the module's own order."""
        return torch.empty_like(w).index_copy_(0, self.order.to(w.device), w)

    def subnetwork(self, w: Tensor, k: int) -> Tensor:
        """w_s^(k): partitions 1..k from ``w``, the rest at their defaults (Section 3).

        Args:
            w: ``[size]`` in partition order.
            k: 0..C; 0 is the network of default values.

        Returns:
            ``[n]`` in the module's own order, the numbers of ``space_of(k)``: n is ``size``, or
            ``bounds[k]`` where the subnetwork has fewer units; ``w`` itself, if there is one partition.
        """
        if not 0 <= k <= self.chunks:
            raise ValueError(f"Subnetworks are numbered 0 (defaults alone) to {self.chunks}, got {k}.")
        if self.chunks == 1 and k == 1:
            return w
        head, default = self.bounds[k], self.default[: self.space_of(k).size]
        return default.to(w).index_copy(0, self._places_of(k, w.device)[:head], w[:head])

    def _places_of(self, k: int, device: torch.device) -> Tensor:
        """:attr:`order` of vectors of subnetwork ``k`` on ``device``, made and copied there once."""
        size = self.space_of(k).size
        if (size, device) not in self._places:
            order = self.order[:size]
            if size < self.space.size:  # numbered among what is there
                order = ((self.assignment <= k).cumsum(0) - 1)[order]
            self._places[size, device] = order.to(device)
        return self._places[size, device]

    def materialise(self, w: Tensor, k: int) -> dict[str, Tensor]:
        """Named tensors of subnetwork ``k``, for ``torch.func.functional_call``; see :meth:`subnetwork`."""
        return self.space_of(k).tensors(self.subnetwork(w, k))


def expected_upload_ratio(clients: Sequence[float], parameters: Sequence[float] | None = None) -> float:
    """Expected upload relative to FedAvg: ``sum_k u_k * sum_{j >= k} u_j`` (App. J.1).

    Args:
        clients: proportions of clients per chunk.
        parameters: proportions of parameters per partition; equal to ``clients`` if not given.

    Example:
        >>> round(expected_upload_ratio((0.7, 0.2, 0.1)), 3)
        0.77
    """
    parameters = clients if parameters is None else parameters
    return sum(u * sum(parameters[k:]) for k, u in enumerate(clients))


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
        counts = torch.tensor(largest_remainders(len(places), proportions))
        labels = torch.repeat_interleave(torch.arange(1, len(counts) + 1, dtype=torch.uint8), counts)
        shuffle = generator(seed, "partition", index).permutation(len(places))
        assignment[places[torch.from_numpy(shuffle)]] = labels
    return assignment
