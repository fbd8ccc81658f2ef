"""scale: the client's own change, many times as long."""

from collections.abc import Sequence

from fedpart.updates.update import Update
from simulations.attacks.base import ATTACKS, Attack, replaced


@ATTACKS.register("scale")
class Scale(Attack):
    """All that is uploaded, times ``scale``."""

    def __init__(self, scale: float = 100.0) -> None:
        self.scale = scale

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        """See :meth:`.Attack.upload`."""
        replaced(own, lambda value: value * self.scale)


@ATTACKS.register("sign")
class Sign(Scale):
    """All that is uploaded with the sign flipped, times ``scale``."""

    def __init__(self, scale: float = 10.0) -> None:
        super().__init__(-scale)
