"""inner: inner product manipulation (Xie et al. 2020)."""

from collections.abc import Sequence

from fedpart.updates.update import Update
from simulations.attacks.base import ATTACKS, Attack, colluding


@ATTACKS.register("inner")
class Inner(Attack):
    """The honest clients' mean, times ``-scale``: the sum's inner product with it is to be below 0."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        """See :meth:`.Attack.upload`."""
        colluding(own, honest, lambda seen: seen.mean(dim=0).mul_(-self.scale))
