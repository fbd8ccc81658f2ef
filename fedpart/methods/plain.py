"""One partition: plain learning (FedAvg, or all data in one place), and psi by examples held out."""

from collections.abc import Sequence

import numpy as np

from fedpart.checks import is_number, require
from fedpart.methods.base import METHODS, CentralMethod, ClientView, FederatedMethod, Method, Schedule
from fedpart.task.gradients import Job, Step
from fedpart.task.task import Task


class Plain(Method):
    """One partition, S = 1, the identity transform, psi frozen: dropout keeps its initial rate.

    Args:
        augment: keep the task's transforms and S, with psi frozen at its initial value.
    """

    def __init__(self, augment: bool = False) -> None:
        require(isinstance(augment, bool), f"augment is true or false, got {augment!r}.")
        self.augment = augment

    def prepare(self, task: Task) -> Task:
        return task if self.augment else task.plain()

    def proportions(self, chunks: Sequence[float]) -> tuple[float, ...]:
        return (1.0,)

    def trained_psi(self, task: Task) -> Sequence[str]:
        return ()


@METHODS.register("none")
class Standard(Plain, CentralMethod):
    """Centralised, on all data; with ``augment``, under the task's initial psi: retraining (App. G)."""

    def steps(self, schedule: Schedule, iteration: int, rng: np.random.Generator) -> list[Step]:
        return [Step(Job(subnetwork=1, partition=1), 1, 1)]


@METHODS.register("fedavg")
class FedAvg(Plain, FederatedMethod):
    """Plain federated learning; see :class:`.Plain` for what is switched off."""

    def plan(self, client: ClientView) -> list[Job]:
        return [Job(subnetwork=1, partition=1)]


@METHODS.register("validated")
class Validated(FederatedMethod):
    """FedAvg whose clients also send psi's gradient, at the server's values, of the negative log-likelihood
    of examples that neither they nor others train weights on: ``validation``, federated.

    Args:
        share: of a client's examples that it holds out, rounded up, between 0 and 1; a client with a single
            example takes it for both.
    """

    def __init__(self, share: float = 0.2) -> None:
        require(is_number(share) and 0 < share < 1, f"validated's share lies between 0 and 1, got {share!r}.")
        self.validates = float(share)

    def proportions(self, chunks: Sequence[float]) -> tuple[float, ...]:
        return (1.0,)

    def plan(self, client: ClientView) -> list[Job]:
        learns = bool(client.task.psi_space.size)
        return [Job(subnetwork=1, partition=1), *([Job(subnetwork=1, psi=True)] if learns else [])]
