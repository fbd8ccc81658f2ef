"""Ways to combine what clients learn of one network: FedProx, FedNova, SCAFFOLD, FedDyn, servers."""

from torch import Tensor

from fedpart.checks import is_number, require
from fedpart.training.optimisers import AdagradSettings, SGDSettings, YogiSettings
from fedpart.updates.combining.base import COMBINATIONS, Combination

# Servers that step by moments (Reddi et al. 2021, Adaptive Federated Optimization).
COMBINATIONS.register("adagrad")(AdagradSettings)
COMBINATIONS.register("yogi")(YogiSettings)


@COMBINATIONS.register("fedavgm")
def fedavgm(learning_rate: float = 1.0, momentum: float = 0.9) -> SGDSettings:
    """FedAvgM (Hsu et al. 2019): the server steps along the mean change with momentum."""
    return SGDSettings(learning_rate, momentum)


@COMBINATIONS.register("fedprox")
class FedProx(Combination):
    """A client minimises its loss plus ``mu/2 |w - w_start|^2``, in each partition (Li et al. 2020, Federated
    Optimization in Heterogeneous Networks, Eq. 2).

    Args:
        mu: of the proximal term, per squared unit of the weights, in nats; the paper tries 0.001 to 1.
    """

    def __init__(self, mu: float = 0.01) -> None:
        require(is_number(mu) and 0 <= mu < float("inf"), f"fedprox's mu is a number >= 0, got {mu!r}.")
        self.pull = float(mu)


@COMBINATIONS.register("fednova")
class FedNova(Combination):
    """Normalised averaging (Wang et al. 2020, Tackling the Objective Inconsistency Problem, Eq. 8): the mean
    of ``d_i = (y_i - x) / |a_i|_1``, times the mean of ``|a_i|_1``, the sum of the weights with which a
    client's gradients count in its change.

    So a client that takes more steps than others does not pull the mean to its own optimum."""

    sees = True

    def beside(self, change: Tensor, mean: Tensor | None, length: float) -> Tensor:
        change.div_(length)
        return change.new_tensor([length])

    def step(self, change: Tensor, beside: Tensor, mean: Tensor | None) -> None:
        change.mul_(beside)


@COMBINATIONS.register("scaffold")
class Scaffold(Combination):
    """Control variates (Karimireddy et al. 2020, Stochastic Controlled Averaging for Federated Learning): a
    client steps along ``g - c_i + c`` (their Eq. 3), c being the mean of all c_i.

    After K steps at a rate of eta, ``c_i <- c_i - c - (y_i - x) / (K eta)`` (Eq. 4, option II). With
    momentum K eta is the sum of the rates with which gradients count. ``(y_i - x)`` is what a client sends
    anyway, so that the server finds c_i's change by itself: up travels what FedAvg sends, and down twice as
    much, with c. Where clients are weighted, so is the mean c."""

    keeps = sends = sees = True

    def shift(self, own: Tensor, mean: Tensor | None) -> Tensor | None:
        return -own if mean is None else mean - own

    def beside(self, change: Tensor, mean: Tensor | None, length: float) -> Tensor:
        moved = change / -length
        return moved if mean is None else moved.sub_(mean)


@COMBINATIONS.register("feddyn")
class FedDyn(Combination):
    """Dynamic regularization (Acar et al. 2021, Federated Learning Based on Dynamic Regularization). A client
    minimises ``L_i(w) - <g_i, w> + alpha/2 |w - w_start|^2`` (their Eq. 1), and then has
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
