"""Networks of several sizes: their tasks, and how the numbers that they have in common are divided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedpart.federated.settings import FederationSettings
from fedpart.methods.base import Method
from fedpart.parameters.nested import nested
from fedpart.parameters.partition import Partition
from fedpart.parameters.united import has_private, united
from fedpart.sharing import sharing_of
from fedpart.task.sizes import composed, of_size
from fedpart.task.task import Task


class Networks(NamedTuple):
    """``task``, ``partition``: of the server's network, the largest; and those of all sizes."""

    task: Task
    partition: Partition
    tasks: Sequence[Task]
    partitions: Sequence[Partition]


def networks(task: Task, method: Method, chunks: tuple[float, ...], settings: FederationSettings) -> Networks:
    """The networks of a run, in the order of ``settings.architectures``; without them the task's alone.

    Args:
        task: as it was given.
        method: prepares tasks, and divides parameters.
        chunks: proportions that the method uses.
        settings: of the run.

    Raises:
        ValueError: see :func:`.of_size`, :meth:`.Sharing.compose`, :func:`.nested`.
    """
    own, number = method.prepare(task), len(chunks)
    if settings.architectures is None:
        partition = method.partition(own, chunks, settings)
        return Networks(own, partition, [own], [partition])
    sized = [of_size(task, one["model_options"], settings.seed) for one in settings.architectures]
    sizes = [one.parameter_space(1).size for one in sized]
    if settings.sharing is not None:
        sized = composed(sized, sharing_of(settings.sharing), settings.seed)
    tasks = [method.prepare(one) for one in sized]
    spaces = [one.parameter_space(number) for one in tasks]
    if has_private(spaces):  # then no network has all
        partitions = nested(method.partition(own, chunks, settings, united(spaces)), spaces)
        largest = sizes.index(max(sizes))
        return Networks(tasks[largest], partitions[largest], tasks, partitions)
    whole = method.partition(own, chunks, settings)
    partition, *partitions = nested(whole, [whole.space, *spaces])
    return Networks(own, partition, tasks, partitions)
