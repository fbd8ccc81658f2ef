"""C separate networks, network k trained on chunks 1..k: the upper bound that partitioning approximates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedpart.methods.base import METHODS
from fedpart.methods.partitioned import Partitioned
from fedpart.parameters.partition import Partition
from fedpart.parameters.space import ParameterSpace
from fedpart.task.jobs import Job, Step
from fedpart.task.task import Task

if TYPE_CHECKING:
    from fedpart.centralised.settings import TrainingSettings
    from fedpart.centralised.training import Training
    from fedpart.federated.settings import FederationSettings


@METHODS.register("separate")
class Separate(Partitioned):
    """As partitioned networks, but w_k is a network of its own (Section 5, Figure 3).

    An iteration steps every network, so each is trained as long as a plain one: C times the work and memory.

    Raises:
        ValueError: settings that divide one network's parameters.
    """

    federated = False

    def partition(
        self, task: Task, chunks: tuple[float, ...], settings: FederationSettings | TrainingSettings
    ) -> Partition:
        if (settings.parameters, settings.scheme, settings.defaults) != (None, "random", "initial"):
            raise ValueError(
                "Separate networks have no partitions within them; leave parameters, scheme, defaults away."
            )
        return SeparateNetworks(task.parameter_space(1), len(chunks))

    def steps(self, training: Training, iteration: int, rng: np.random.Generator) -> list[Step]:
        networks = range(1, len(training.shares) + 1)
        steps = [Step(Job(subnetwork=k, partition=k), 1, k) for k in networks]
        return [*steps, *self.psi_steps(training, iteration, rng)]


class SeparateNetworks(Partition):
    """C networks instead of C partitions of one: w_k is network k, and subnetwork k is that network alone.

    Args:
        space: of one network; ``space.chunks`` must be 1.
        chunks: C.
    """

    def __init__(self, space: ParameterSpace, chunks: int) -> None:
        super().__init__(space, (1.0,))
        self.chunks = chunks
        self.proportions = (1 / chunks,) * chunks
        self.bounds = tuple(k * space.size for k in range(chunks + 1))

    def initial(self) -> Tensor:
        """The initial values, the same for every network; ``[C * size]``."""
        return self.space.initial().repeat(self.chunks)

    def subnetwork(self, w: Tensor, k: int) -> Tensor:
        """Network ``k`` of ``w [C * size]``, in the module's own order; the initial values for k = 0."""
        return self.default.to(w) if k == 0 else w[self.slice(k)]

    def take(self, own: Tensor, j: int, k: int) -> Tensor:
        return own

    def select(self, own: list[Tensor], j: int, k: int) -> list[Tensor]:
        return own

    def put(self, own: Tensor, j: int, k: int, w_j: Tensor) -> Tensor:
        return w_j
