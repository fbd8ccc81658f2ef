"""FedProx (Li et al. 2020, Federated Optimization in Heterogeneous Networks)."""

from fedpart.checks import is_number, require
from fedpart.updates.combining.base import COMBINATIONS, Combination


@COMBINATIONS.register("fedprox")
class FedProx(Combination):
    """A client minimises its loss plus ``mu/2 |w - w_start|^2`` (their Eq. 2), in each partition.

    Args:
        mu: of the proximal term, per squared unit of the weights, in nats; the paper tries 0.001 to 1.
    """

    def __init__(self, mu: float = 0.01) -> None:
        require(is_number(mu) and 0 <= mu < float("inf"), f"fedprox's mu is a number >= 0, got {mu!r}.")
        self.pull = float(mu)
