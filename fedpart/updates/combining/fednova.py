"""FedNova (Wang et al. 2020, Tackling the Objective Inconsistency Problem in Federated Optimization)."""

from torch import Tensor

from fedpart.updates.combining.base import COMBINATIONS, Combination


@COMBINATIONS.register("fednova")
class FedNova(Combination):
    """Normalised averaging (their Eq. 8): the mean of ``d_i = (y_i - x) / |a_i|_1``, times the mean of
    ``|a_i|_1``, the sum of the weights with which a client's gradients count in its change.

    So a client that takes more steps than others does not pull the mean to its own optimum."""

    sees = True

    def beside(self, change: Tensor, mean: Tensor | None, length: float) -> Tensor:
        change.div_(length)
        return change.new_tensor([length])

    def step(self, change: Tensor, beside: Tensor, mean: Tensor | None) -> None:
        change.mul_(beside)
