"""Validated: one network, and psi along the gradient on examples that clients hold out."""

from collections.abc import Sequence

from fedpart.checks import is_number, require
from fedpart.methods.base import METHODS, ClientView, FederatedMethod
from fedpart.task.gradients import Job


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
