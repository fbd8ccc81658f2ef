"""FedAvg with a server-side Adam (McMahan et al. 2017, Reddi et al. 2020): the baseline without psi."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedpart.jobs import Job
from fedpart.methods.base import METHODS, Method
from fedpart.task import Task

if TYPE_CHECKING:
    from fedpart.protocol import Protocol


@METHODS.register("fedavg")
class FedAvg(Method):
    """One partition, S = 1, the identity transform, psi frozen: dropout keeps its initial rate.

    Args:
        augment: keep the task's transforms and S, with psi frozen at its initial value.
    """

    def __init__(self, augment: bool = False) -> None:
        self.augment = augment

    def prepare(self, task: Task) -> Task:
        return task if self.augment else task.plain()

    def proportions(self, chunks: Sequence[float]) -> tuple[float, ...]:
        return (1.0,)

    def trained_psi(self, task: Task) -> Sequence[str]:
        return ()

    def plan(self, protocol: Protocol, client: int, round: int) -> list[Job]:
        return [Job(subnetwork=1, partition=1)]
