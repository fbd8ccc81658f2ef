"""The geometric median: RFA (Pillutla et al. 2022), by a smoothed Weiszfeld algorithm."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpart.updates.defences.base import DEFENCES, Defence, distances, inner_products, weighted_sum

_STEPS, _STILL = 500, 1e-9  # iterations at most, and the change of all weights that is none
_TINY = 1e-300  # a distance of none, where it is divided by


@DEFENCES.register("geometric")
class Geometric(Defence):
    """The point with the least sum of distances to the clients' (Pillutla et al. 2022, algorithm 2).

    It is a mean of the clients' vectors, so its weights are all that is iterated, from the vectors' inner
    products. The beginning is the mean of the smallest majority, which no minority moves.

    Args:
        smoothing: distances below this share of that majority's radius count as that.

    Raises:
        ValueError: the smoothing is not above 0.
    """

    def __init__(self, smoothing: float = 1e-6) -> None:
        if smoothing <= 0:
            raise ValueError(f"The smoothing of the defence 'geometric' is above 0, got {smoothing}.")
        self.smoothing = smoothing

    def bears(self, clients: int) -> int:
        """See :meth:`.Defence.bears`: less than half."""
        return (clients - 1) // 2

    def combine(self, values: Sequence[Tensor], memory: Tensor | None) -> Tensor:
        return weighted_sum(values, self._weights(inner_products(values)).tolist())

    def _weights(self, products: Tensor) -> Tensor:
        """``[n]``, sum 1, of the vectors with these inner products."""
        majority = len(products) // 2 + 1
        near, who = distances(products).sort(dim=1, stable=True)
        centre = int(near[:, majority - 1].argmin())
        floor = max(self.smoothing * near[centre, majority - 1].item(), _TINY)
        weights = torch.zeros(len(products), dtype=torch.float64)
        weights[who[centre, :majority]] = 1 / majority
        for _ in range(_STEPS):
            towards = products @ weights
            squares = weights @ towards - 2 * towards + products.diagonal()
            closeness = 1 / squares.clamp_(min=0).sqrt_().clamp_(min=floor)
            before, weights = weights, closeness / closeness.sum()
            if (weights - before).abs().sum() < _STILL:
                break
        return weights
