"""Multi-Krum (Blanchard et al. 2017): the mean of those whose neighbours are near."""

import math
from collections.abc import Sequence

from torch import Tensor

from fedpart.updates.defences.base import (
    DEFENCES,
    Defence,
    check_share,
    distances,
    inner_products,
    median,
    weighted_sum,
)


@DEFENCES.register("krum")
class Krum(Defence):
    """The mean of the n - f - 2 with the least sum of squared distances to their n - f - 2 nearest.

    So many may be chosen (El Mhamdi et al. 2018). It takes 2 f + 3 clients to bear f; of fewer the
    coordinates' median is taken, which bears as many.

    Args:
        share: of the clients that may be hostile: ``f = ceil(share n)``.

    Raises:
        ValueError: it is not above 0 and below one half.
    """

    def __init__(self, share: float = 0.2) -> None:
        self.share = check_share(share)

    def _enough(self, clients: int) -> bool:
        return clients >= 2 * math.ceil(self.share * clients) + 3

    def bears(self, clients: int) -> int:
        """See :meth:`.Defence.bears`: f, or what the median bears."""
        return math.ceil(self.share * clients) if self._enough(clients) else (clients - 1) // 2

    def combine(self, values: Sequence[Tensor], memory: Tensor | None) -> Tensor:
        if not self._enough(n := len(values)):
            return median(values)
        count = n - math.ceil(self.share * n) - 2
        near = distances(inner_products(values)).square_().sort(dim=1).values
        scores = near[:, 1 : count + 1].sum(dim=1)  # the nearest of all is itself
        chosen = set(scores.argsort(stable=True)[:count].tolist())
        return weighted_sum(values, [float(i in chosen) for i in range(n)]).div_(count)
