"""Partitioning schemes by name: how one network's parameters are divided where there are several chunks."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fedpart.partition.assigned import RandomPartition
from fedpart.partition.nodes import NodePartition
from fedpart.partition.partition import Partition
from fedpart.partition.space import ParameterSpace
from fedpart.registry import Registry

SCHEMES: Registry[Callable[..., Partition]] = Registry(
    "partitioning scheme", {"random": RandomPartition, "node": NodePartition}, makes=(Partition,)
)


def divided(scheme: str, space: ParameterSpace, proportions: Sequence[float], **known: Any) -> Partition:
    """The partition that a scheme, in :data:`SCHEMES` or ``package.module:callable``, makes of a space.

    It is given the space, the proportions, and what it names of ``module``, the network, and ``defaults``,
    ``seed``, ``chain`` of :class:`.RunSettings`.
    """
    build = SCHEMES.resolve(scheme)
    names = inspect.signature(build).parameters
    return build(space, proportions, **{name: value for name, value in known.items() if name in names})
