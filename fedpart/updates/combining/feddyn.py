"""FedDyn (Acar et al. 2021, Federated Learning Based on Dynamic Regularization)."""

from torch import Tensor

from fedpart.checks import is_number, require
from fedpart.training.optimisers import SGDSettings
from fedpart.updates.combining.base import COMBINATIONS, Combination


@COMBINATIONS.register("feddyn")
class FedDyn(Combination):
    """A client minimises ``L_i(w) - <g_i, w> + alpha/2 |w - w_start|^2`` (their Eq. 1), and then has
    ``g_i <- g_i - alpha (w - w_start)`` (Eq. 2). With h, the mean of all g_i, the server goes to the mean of
    the clients' weights minus ``h / alpha`` (Algorithm 1). Nothing travels that FedAvg does not send.

    So the server adds all that clients have ever moved, whatever alpha is, and g_i must grow as fast: alpha
    is about 1 over a client's steps times their rate. No optimiser takes the place of that sum.

    Args:
        alpha: of the regulariser, per squared unit of the weights, in nats; the paper, whose clients take
            many steps a round, tries 0.001 to 0.1.
    """

    keeps = sees = True
    server = SGDSettings(1.0)

    def __init__(self, alpha: float = 1.0) -> None:
        positive = is_number(alpha) and 0 < alpha < float("inf")
        require(positive, f"feddyn's alpha is a number above 0, got {alpha!r}.")
        self.pull = float(alpha)

    def shift(self, own: Tensor, mean: Tensor | None) -> Tensor | None:
        return -own

    def beside(self, change: Tensor, mean: Tensor | None, length: float) -> Tensor:
        return change * -self.pull

    def step(self, change: Tensor, beside: Tensor, mean: Tensor | None) -> None:
        if mean is not None:
            change.sub_(mean, alpha=1 / self.pull)
