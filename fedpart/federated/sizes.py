"""Networks of several sizes: their tasks, and how the numbers that they have in common are divided."""

from collections.abc import Sequence
from typing import NamedTuple

from fedpart.federated.settings import FederationSettings
from fedpart.methods.base import Method
from fedpart.partition.nested import has_private, nested, united
from fedpart.partition.partition import Partition
from fedpart.partition.sharing import sharing_of
from fedpart.task.sizes import composed, of_size
from fedpart.task.task import Task


class Networks(NamedTuple):
    """``task``, ``partition``: of the server's network; and those of all sizes."""

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
        ValueError: see :func:`.of_size`, :meth:`.Sharing.compose`, :func:`fedpart.partition.nested.nested`.
    """
    own, number = method.prepare(task), len(chunks)
    if settings.architectures is None:
        partition = method.partition(own, chunks, settings)
        return Networks(own, partition, [own], [partition])
    sized = [of_size(task, one["model_options"], settings.seed) for one in settings.architectures]
    shapes = [
        [(entry.name, entry.shape) for entry in one.parameter_space(1).entries] for one in (task, *sized)
    ]
    if settings.sharing is not None:
        given = [task if same == shapes[0] else one for same, one in zip(shapes[1:], sized, strict=True)]
        sized = composed(given, sharing_of(settings.sharing), settings.seed)
    tasks = [method.prepare(one) for one in sized]
    spaces = [one.parameter_space(number) for one in tasks]
    if has_private(spaces):  # then no network has all
        if shapes[0] not in shapes[1:]:
            raise ValueError(
                "No architecture is the task's own network, which is the one that is scored; give the task "
                "the network of one of them."
            )
        partitions = nested(method.partition(own, chunks, settings, united(spaces)), spaces)
        index = shapes[1:].index(shapes[0])
        return Networks(tasks[index], partitions[index], tasks, partitions)
    whole = method.partition(own, chunks, settings)
    partition, *partitions = nested(whole, [whole.space, *spaces])
    return Networks(own, partition, tasks, partitions)
