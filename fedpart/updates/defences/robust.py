"""Robust means: the median and the trimmed mean of each number (Yin et al. 2018); RFA's geometric median,
multi-Krum and centred clipping, by distances of whole vectors."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.updates.defences import base

_STEPS, _STILL = 500, 1e-9  # iterations at most, and the change of all weights that is none
_TINY = 1e-300  # a distance of none, where it is divided by


@base.DEFENCES.register("median")
class Median(base.Majority):
    """The value in the middle; of an even number of clients the mean of the two in the middle."""

    by_coordinate = True

    def combine(self, values: Sequence[Tensor], memory: Tensor | None) -> Tensor:
        return base.median(values)


@base.DEFENCES.register("trim")
class Trim(base.Defence):
    """Leaves out the g largest and the g smallest of n values, ``g = ceil(share n)``.

    Of few so many only that one or two are left: their median.

    Args:
        share: of the clients, left out at either end.

    Raises:
        ValueError: it is not above 0 and below one half.
    """

    by_coordinate = True

    def __init__(self, share: float = 0.2) -> None:
        self.share = base.check_share(share)

    def bears(self, clients: int) -> int:
        """See :meth:`.Defence.bears`: as many as are left out at an end."""
        return min(math.ceil(self.share * clients), (clients - 1) // 2)

    def combine(self, values: Sequence[Tensor], memory: Tensor | None) -> Tensor:
        return base.without_extremes(values, self.bears(len(values)))


@base.DEFENCES.register("geometric")
class Geometric(base.Majority):
    """The point with the least sum of distances to the clients' (Pillutla et al. 2022, algorithm 2).

    It is a mean of the clients' vectors, so its weights are all that is iterated, from the vectors' inner
    products. The beginning is the mean of the smallest majority, which no minority moves.

    Args:
        smoothing: distances below this share of that majority's radius count as that.

    Raises:
        ValueError: the smoothing is not above 0.
    """

    def __init__(self, smoothing: float = 1e-6) -> None:
        require(smoothing > 0, f"The smoothing of the defence 'geometric' is above 0, got {smoothing}.")
        self.smoothing = smoothing

    def combine(self, values: Sequence[Tensor], memory: Tensor | None) -> Tensor:
        return base.weighted_sum(values, self._weights(base.inner_products(values)).tolist())

    def _weights(self, products: Tensor) -> Tensor:
        """``[n]``, sum 1, of the vectors with these inner products."""
        majority = len(products) // 2 + 1
        near, who = base.distances(products).sort(dim=1, stable=True)
        centre = int(near[:, majority - 1].argmin())
        floor = max(self.smoothing * near[centre, majority - 1].item(), _TINY)
        weights = torch.zeros(len(products), dtype=torch.float64)
        weights[who[centre, :majority]] = 1 / majority
        for _ in range(_STEPS):
            towards = products @ weights
            squares = weights @ towards - 2 * towards + products.diagonal()
            closeness = 1 / squares.clamp_(min=0).sqrt_().clamp_(min=floor)
            before, weights = weights, closeness / closeness.sum()
            if (weights - before).abs().sum() < _STILL:
                break
        return weights


@base.DEFENCES.register("krum")
class Krum(base.Defence):
    """The mean of the n - f - 2 with the least sum of squared distances to their n - f - 2 nearest.

    So many may be chosen (El Mhamdi et al. 2018). It takes 2 f + 3 clients to bear f; of fewer the
    coordinates' median is taken, which bears as many.

    Args:
        share: of the clients that may be hostile: ``f = ceil(share n)``.

    Raises:
        ValueError: it is not above 0 and below one half.
    """

    def __init__(self, share: float = 0.2) -> None:
        self.share = base.check_share(share)

    def _enough(self, clients: int) -> bool:
        return clients >= 2 * math.ceil(self.share * clients) + 3

    def bears(self, clients: int) -> int:
        """See :meth:`.Defence.bears`: f, or what the median bears."""
        return math.ceil(self.share * clients) if self._enough(clients) else (clients - 1) // 2

    def combine(self, values: Sequence[Tensor], memory: Tensor | None) -> Tensor:
        if not self._enough(n := len(values)):
            return base.median(values)
        count = n - math.ceil(self.share * n) - 2
        near = base.distances(base.inner_products(values)).square_().sort(dim=1).values
        scores = near[:, 1 : count + 1].sum(dim=1)  # the nearest of all is itself
        chosen = set(scores.argsort(stable=True)[:count].tolist())
        return base.weighted_sum(values, [float(i in chosen) for i in range(n)]).div_(count)


@base.DEFENCES.register("centred")
class Centred(base.Majority):
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

    def combine(self, values: Sequence[Tensor], memory: Tensor | None) -> Tensor:
        n, centre = len(values), torch.zeros_like(values[0]) if memory is None else memory
        far = [torch.linalg.vector_norm(value - centre, dtype=torch.float64).item() for value in values]
        radius = sorted(far)[(n - 1) // 2] if self.radius is None else self.radius
        if self.reach is not None:
            values = [value for value, away in zip(values, far, strict=True) if away <= self.reach * radius]
            far = [away for away in far if away <= self.reach * radius]
        if not values:
            return centre.clone()
        shares = [1.0 if away <= radius else radius / away for away in far]
        return base.weighted_sum([*values, centre], [*shares, len(far) - sum(shares)]).div_(len(far))

    def remembered(self, combined: Tensor, memory: Tensor | None) -> Tensor:
        """See :meth:`.Defence.remembered`: the centre."""
        return combined * (1 - self.momentum) + (0.0 if memory is None else memory * self.momentum)
