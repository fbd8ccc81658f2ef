"""little: a little is enough (Baruch et al. 2019)."""

from collections.abc import Sequence

from fedpart.updates.update import Update
from simulations.attacks.base import ATTACKS, Attack, colluding


@ATTACKS.register("little")
class Little(Attack):
    """The honest clients' mean, less ``deviations`` standard deviations of each coordinate."""

    def __init__(self, deviations: float = 1.5) -> None:
        self.deviations = deviations

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        """See :meth:`.Attack.upload`."""
        colluding(
            own, honest, lambda seen: seen.mean(dim=0) - self.deviations * seen.std(dim=0, correction=0)
        )
