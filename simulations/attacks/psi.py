"""psi: honest weights, and a gradient of the hyperparameters that is not."""

from collections.abc import Sequence

from fedpart.updates.update import Update
from simulations.attacks.base import ATTACKS, Attack


@ATTACKS.register("psi")
class Psi(Attack):
    """psi's gradient times ``-scale``; hostile are clients of the chunks from 2 on, who send one."""

    on_psi = True

    def __init__(self, scale: float = 100.0) -> None:
        self.scale = scale

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        """See :meth:`.Attack.upload`."""
        if own.psi is not None:
            own.psi = own.psi * -self.scale
