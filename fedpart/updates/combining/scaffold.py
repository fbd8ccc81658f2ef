"""SCAFFOLD (Karimireddy et al. 2020, Stochastic Controlled Averaging for Federated Learning)."""

from torch import Tensor

from fedpart.updates.combining.base import COMBINATIONS, Combination


@COMBINATIONS.register("scaffold")
class Scaffold(Combination):
    """Control variates: a client steps along ``g - c_i + c`` (their Eq. 3), c being the mean of all c_i.

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
