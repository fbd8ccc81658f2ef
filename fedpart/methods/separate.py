"""C separate networks, network k trained on chunks 1..k: the upper bound that partitioning approximates."""

import numpy as np

from fedpart.methods.base import METHODS, Schedule
from fedpart.methods.partitioned import Partitioned
from fedpart.partition.partition import Partition, SeparateNetworks
from fedpart.partition.space import ParameterSpace
from fedpart.task.gradients import Job, Step
from fedpart.task.task import Task
from fedpart.training.settings import RunSettings


@METHODS.register("separate")
class Separate(Partitioned):
    """As partitioned networks, but w_k is a network of its own (Section 5, Figure 3).

    An iteration steps every network, so each is trained as long as a plain one: C times the work and memory.

    Raises:
        ValueError: settings that divide one network's parameters.
    """

    federated = False

    def partition(
        self,
        task: Task,
        chunks: tuple[float, ...],
        settings: RunSettings,
        space: ParameterSpace | None = None,
    ) -> Partition:
        if (settings.parameters, settings.scheme, settings.defaults) != (None, "random", "initial"):
            raise ValueError(
                "Separate networks have no partitions within them; leave parameters, scheme, defaults away."
            )
        return SeparateNetworks(task.parameter_space(1), len(chunks))

    def steps(self, schedule: Schedule, iteration: int, rng: np.random.Generator) -> list[Step]:
        networks = range(1, len(schedule.shares) + 1)
        steps = [Step(Job(subnetwork=k, partition=k), 1, k) for k in networks]
        return [*steps, *self.psi_steps(schedule, iteration, rng)]
