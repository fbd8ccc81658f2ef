"""constant, nan: the same number everywhere."""

import math
from collections.abc import Sequence

from fedpart.updates.update import Update
from simulations.attacks.base import ATTACKS, Attack, replaced


@ATTACKS.register("constant")
class Constant(Attack):
    """Every number is ``value``."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = value

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        """See :meth:`.Attack.upload`."""
        replaced(own, lambda value: value.clone().fill_(self.value))


@ATTACKS.register("nan")
class NotANumber(Constant):
    """Every number is NaN, which the server refuses: the run goes on with ``on_client_error: skip``."""

    def __init__(self) -> None:
        super().__init__(math.nan)
