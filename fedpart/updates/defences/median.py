"""The median of each coordinate (Yin et al. 2018)."""

from collections.abc import Sequence

from torch import Tensor

from fedpart.updates.defences.base import DEFENCES, Defence, median


@DEFENCES.register("median")
class Median(Defence):
    """The value in the middle; of an even number of clients the mean of the two in the middle."""

    by_coordinate = True

    def bears(self, clients: int) -> int:
        """See :meth:`.Defence.bears`: less than half."""
        return (clients - 1) // 2

    def combine(self, values: Sequence[Tensor], memory: Tensor | None) -> Tensor:
        return median(values)
