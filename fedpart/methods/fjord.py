"""FjORD (Horvath et al. 2021): ordered dropout, a width drawn for every local step."""

from __future__ import annotations

from fedpart.methods.base import METHODS
from fedpart.methods.fedavg import FedAvg
from fedpart.methods.views import ClientView
from fedpart.randomness.streams import generator


@METHODS.register("fjord")
class FjORD(FedAvg):
    """FedAvg over ``architectures``: each local step trains one of those that are parts of the client's.

    Every size that the client's device can compute is drawn equally often, its own included. Its
    self-distillation is not built.
    """

    def architectures(self, client: ClientView, steps: int) -> list[int]:
        rng = generator(client.seed, "fjord", client.number, client.round)
        return [client.parts[drawn] for drawn in rng.integers(len(client.parts), size=steps)]
