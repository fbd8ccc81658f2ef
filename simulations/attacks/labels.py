"""labels: an honest client whose labels are wrong."""

from torch import Tensor

from fedpart import Dataset
from simulations.attacks.base import ATTACKS, Attack


@ATTACKS.register("labels")
class Labels(Attack):
    """Class y is called K - 1 - y, in training and for psi."""

    def shard(self, shard: Dataset, classes: int) -> Dataset:
        """See :meth:`.Attack.shard`."""
        if not isinstance(shard.targets, Tensor) or shard.targets.is_floating_point():
            raise ValueError("The attack 'labels' is for targets that are labels; choose another.")
        return shard.relabelled(classes - 1 - shard.targets)
