"""Centred clipping with momentum (Karimireddy et al. 2021)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpart.updates.defences.base import DEFENCES, Defence, weighted_sum


@DEFENCES.register("centred")
class Centred(Defence):
    """The mean of what clients send, each drawn towards a centre until it is within a radius of it.

    The centre is an average over the results of earlier rounds, at first 0: ``c + mean(clip(x - c))``. In the
    paper every worker averages its own results; here clients are drawn anew each round, and the
    server averages. What it remembers is one vector the size of the network, and of psi.

    Args:
        radius: L2 norm, of a cell's change and of psi's gradient; None: the distance of the client in the
            middle, in each round and cell, which a minority does not decide.
        momentum: what the centre keeps of itself in a round.
        reach: clients further away than so many radii do not count at all, as in redescending estimators
            (Hampel 1974); None: they do, as in the paper.

    Raises:
        ValueError: the radius is not above 0, the momentum not from 0 to below 1, or the reach below 1.
    """

    def __init__(
        self, radius: float | None = None, momentum: float = 0.9, reach: float | None = None
    ) -> None:
        if radius is not None and not radius > 0:
            raise ValueError(f"The radius of the defence 'centred' is above 0, or null, got {radius}.")
        if not 0 <= momentum < 1:
            raise ValueError(f"The momentum of the defence 'centred' is from 0 to below 1, got {momentum}.")
        if reach is not None and reach < 1:
            raise ValueError(f"The reach of the defence 'centred' is at least 1, or null, got {reach}.")
        self.radius, self.momentum, self.reach = radius, momentum, reach

    def bears(self, clients: int) -> int:
        """See :meth:`.Defence.bears`: less than half."""
        return (clients - 1) // 2

    def combine(self, values: Sequence[Tensor], memory: Tensor | None) -> Tensor:
        n, centre = len(values), torch.zeros_like(values[0]) if memory is None else memory
        far = [torch.linalg.vector_norm(one - centre, dtype=torch.float64).item() for one in values]
        radius = sorted(far)[(n - 1) // 2] if self.radius is None else self.radius
        if self.reach is not None:
            values = [one for one, away in zip(values, far, strict=True) if away <= self.reach * radius]
            far = [away for away in far if away <= self.reach * radius]
        if not values:
            return centre.clone()
        shares = [1.0 if away <= radius else radius / away for away in far]
        return weighted_sum([*values, centre], [*shares, len(far) - sum(shares)]).div_(len(far))

    def remembered(self, combined: Tensor, memory: Tensor | None) -> Tensor:
        """See :meth:`.Defence.remembered`: the centre."""
        return combined * (1 - self.momentum) + (0.0 if memory is None else memory * self.momentum)
