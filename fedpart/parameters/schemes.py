"""Partitioning schemes by name: how one network's parameters are divided where there are several chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import nn

from fedpart.parameters.assigned import Defaults, RandomPartition
from fedpart.parameters.nodes import NodePartition
from fedpart.parameters.partition import Partition
from fedpart.parameters.space import ParameterSpace
from fedpart.registry import Registry


class Scheme(Protocol):
    """Makes the partition of a network; one's own is often an :class:`.AssignedPartition`."""

    def __call__(
        self,
        space: ParameterSpace,
        proportions: Sequence[float],
        module: nn.Module,
        *,
        defaults: Defaults,
        seed: int,
        chain: Sequence[str] | None,
    ) -> Partition:
        """The partition of ``space``, that of ``module``, in these proportions; see :class:`.RunSettings`."""


SCHEMES: Registry[Scheme] = Registry("partitioning scheme", {"node": NodePartition})


@SCHEMES.register("random")
def random(
    space: ParameterSpace,
    proportions: Sequence[float],
    module: nn.Module,
    *,
    defaults: Defaults,
    seed: int,
    chain: Sequence[str] | None,
) -> Partition:
    """Single weights, drawn at random in every layer; the order of layers does not matter."""
    return RandomPartition(space, proportions, defaults=defaults, seed=seed)
