"""Universally slimmable networks: of many widths, each step trains a few (Yu and Huang 2019)."""

from collections.abc import Sequence

from torch import Tensor, nn

from fedpart.nn.models.ensembles.ensemble import ENSEMBLES, BuildMember, Ensemble, Member
from fedpart.nn.models.ensembles.slimmable import nested
from fedpart.randomness.noise import order


class UniversallySlimmable(Ensemble):
    """Networks of several widths with one set of weights, norms included.

    A pass of training computes the largest and the smallest one, and ``drawn - 2`` others by chance (the
    sandwich rule), in the order of members. Any other pass computes all. The published BatchNorm is
    calibrated for every width after training; GroupNorm need not be.

    Args:
        members: see :func:`fedpart.nn.models.ensembles.slimmable.nested`.
        drawn: how many a pass of training computes.

    Raises:
        ValueError: fewer than two, or more than there are members; or two of one width.
    """

    def __init__(self, members: Sequence[nn.Module], drawn: int = 4) -> None:
        sizes = [sum(parameter.numel() for parameter in member.parameters()) for member in members]
        if not 2 <= drawn <= len(members):
            raise ValueError(
                f"A step trains two members or more, at most all {len(members)}, got drawn: {drawn}; change "
                f"it, or give more members."
            )
        if len(set(sizes)) < len(sizes):
            raise ValueError(
                "Two members of a universally slimmable network have one width, and so are one network; give "
                "each width once."
            )
        self.ends = (nested(members, own_norms=False), sizes.index(min(sizes)))
        super().__init__(members)
        self.drawn = drawn

    def forward(self, x: Tensor, *, only: Sequence[int] | None = None) -> Tensor:
        if self.training and only is None and self.drawn < len(self):
            only = self._sandwich(x)
        return super().forward(x, only=only)

    def _sandwich(self, x: Tensor) -> list[int]:
        others = [i for i in range(len(self)) if i not in self.ends]
        places = order(len(others), x).argsort()[: self.drawn - 2].tolist()
        return sorted({*self.ends, *(others[place] for place in places)})


@ENSEMBLES.register("universally_slimmable")
def universally_slimmable(
    build: BuildMember, members: Sequence[Member], drawn: int = 4
) -> UniversallySlimmable:
    """:class:`UniversallySlimmable` of members that are described."""
    return UniversallySlimmable([build(member) for member in members], drawn)
