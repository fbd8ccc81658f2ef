"""The attacks of the literature, by their names."""

import math
from collections.abc import Sequence

from torch import Tensor

from fedpart import Dataset
from fedpart.updates.update import PSI, Update
from simulations.attacks.base import ATTACKS, Attack, colluding, replaced


@ATTACKS.register("constant")
class Constant(Attack):
    """Every number is ``value``."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = value

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        replaced(own, lambda value: value.clone().fill_(self.value))


@ATTACKS.register("nan")
class NotANumber(Constant):
    """Every number is NaN, which the server refuses: the run goes on with ``on_client_error: skip``."""

    def __init__(self) -> None:
        super().__init__(math.nan)


@ATTACKS.register("inner")
class Inner(Attack):
    """Inner product manipulation (Xie et al. 2020): the honest clients' mean, times ``-scale``.

    The sum's inner product with it is to be below 0.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        colluding(own, honest, lambda seen: seen.mean(dim=0).mul_(-self.scale))


@ATTACKS.register("labels")
class Labels(Attack):
    """Class y is called K - 1 - y, in training and for psi."""

    def shard(self, shard: Dataset, classes: int) -> Dataset:
        if not isinstance(shard.targets, Tensor) or shard.targets.is_floating_point():
            raise ValueError("The attack 'labels' is for targets that are labels; choose another.")
        return shard.relabelled(classes - 1 - shard.targets)


@ATTACKS.register("little")
class Little(Attack):
    """A little is enough (Baruch et al. 2019): the honest mean, less ``deviations`` standard deviations."""

    def __init__(self, deviations: float = 1.5) -> None:
        self.deviations = deviations

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        colluding(
            own, honest, lambda seen: seen.mean(dim=0) - self.deviations * seen.std(dim=0, correction=0)
        )


@ATTACKS.register("psi")
class Psi(Attack):
    """psi's gradient times ``-scale``; hostile are clients of the chunks from 2 on, who send one."""

    on_psi = True

    def __init__(self, scale: float = 100.0) -> None:
        self.scale = scale

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        if own.psi is not None:
            own.parts[PSI] = own.psi * -self.scale


@ATTACKS.register("scale")
class Scale(Attack):
    """All that is uploaded, times ``scale``."""

    def __init__(self, scale: float = 100.0) -> None:
        self.scale = scale

    def upload(self, own: Update, honest: Sequence[Update]) -> None:
        replaced(own, lambda value: value * self.scale)


@ATTACKS.register("sign")
class Sign(Scale):
    """All that is uploaded with the sign flipped, times ``scale``."""

    def __init__(self, scale: float = 10.0) -> None:
        super().__init__(-scale)
