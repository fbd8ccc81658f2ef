"""C separate networks, network k trained on chunks 1..k: the upper bound that partitioning approximates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpart.methods.base import METHODS
from fedpart.methods.partitioned import Partitioned
from fedpart.partition import Partition, SeparateNetworks
from fedpart.task import Task

if TYPE_CHECKING:
    from fedpart.settings import FederationSettings, TrainingSettings


@METHODS.register("separate")
class Separate(Partitioned):
    """As partitioned networks, but w_k is a network of its own: C times the memory (Section 5, Figure 3)."""

    federated = False

    def partition(
        self, task: Task, chunks: tuple[float, ...], settings: FederationSettings | TrainingSettings
    ) -> Partition:
        return SeparateNetworks(task.parameter_space(1), len(chunks))
