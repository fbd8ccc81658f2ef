"""What plain learning does, federated (FedAvg) or not: one partition, psi frozen."""

from __future__ import annotations

from collections.abc import Sequence

from fedpart.methods.base import Method
from fedpart.task.task import Task


class Plain(Method):
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
