"""MIMO: one network that takes several images at a time and tells the class of each (Havasi et al. 2021)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedpart.nn.models.ensembles.ensemble import ENSEMBLES, BuildMember, Ensemble, Member, equal
from fedpart.randomness.noise import order


class Mimo(Ensemble):
    """Members that are subnetworks of one network, each with an input and an output of its own.

    The network takes ``[B, M channels, ...]``, and returns ``[B, M K]``. In training a row of its input has M
    images of the batch, by random permutations, and the outputs are put back in the order of the images.
    Otherwise it has M times the same image. No image is repeated in a batch, or given to several members at
    once.
    """

    def __init__(self, network: nn.Module, members: int) -> None:
        super().__init__([network])
        self.count = members

    @property
    def ties_examples(self) -> bool:
        """Whether an example's outputs depend on the others of its batch; the network is not partitioned."""
        return self.count > 1

    def __len__(self) -> int:
        return self.count

    def forward(self, x: Tensor, *, only: Sequence[int] | None = None) -> Tensor:
        places = [order(len(x), x).argsort() for _ in range(self.count - 1)] if self.training else []
        shown = [x, *(x[place] for place in places)] if self.training else [x] * self.count
        outputs = self.members[0](torch.cat(shown, 1))
        each = outputs.view(len(x), self.count, -1).unbind(1)
        if places:
            each = (each[0], *(part[at.argsort()] for part, at in zip(each[1:], places, strict=True)))
        return torch.stack(each if only is None else [each[i] for i in only], 1)


@ENSEMBLES.register("mimo")
def mimo(build: BuildMember, members: Sequence[Member]) -> Mimo:
    """:class:`Mimo` of members that are described."""
    return Mimo(build(equal("mimo", members), len(members)), len(members))
