"""Coordinate by coordinate: the median and the trimmed mean (Yin et al. 2018)."""

import math
from collections.abc import Sequence

from torch import Tensor

from fedpart.updates.defences.base import DEFENCES, Defence, Majority, check_share, median, without_extremes


@DEFENCES.register("median")
class Median(Majority):
    """The value in the middle; of an even number of clients the mean of the two in the middle."""

    by_coordinate = True

    def combine(self, values: Sequence[Tensor], memory: Tensor | None) -> Tensor:
        return median(values)


@DEFENCES.register("trim")
class Trim(Defence):
    """Leaves out the g largest and the g smallest of n values, ``g = ceil(share n)``.

    Of few so many only that one or two are left: their median.

    Args:
        share: of the clients, left out at either end.

    Raises:
        ValueError: it is not above 0 and below one half.
    """

    by_coordinate = True

    def __init__(self, share: float = 0.2) -> None:
        self.share = check_share(share)

    def bears(self, clients: int) -> int:
        """See :meth:`.Defence.bears`: as many as are left out at an end."""
        return min(math.ceil(self.share * clients), (clients - 1) // 2)

    def combine(self, values: Sequence[Tensor], memory: Tensor | None) -> Tensor:
        return without_extremes(values, self.bears(len(values)))
