"""Defence: one vector that stands for those of n clients, whatever a few of them have sent."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.registry import Registry

_PIECE = 2**16  # coordinates that are looked at together, of all clients


class Defence(ABC):
    """Subclass it in a file of its own and register it: ``@DEFENCES.register("name")``.

    It is made with ``defence_options`` and called for each cell of the weights over the clients that have
    trained it, and for psi's gradient over those that have sent one. All clients weigh the same. It keeps
    nothing itself: what it has to remember of a round it returns from :meth:`remembered`.

    Attributes:
        by_coordinate: whether each coordinate is decided by itself.
    """

    by_coordinate: ClassVar[bool] = False

    @abstractmethod
    def combine(self, values: Sequence[Tensor], memory: Tensor | None) -> Tensor:
        """What stands for ``values``.

        Args:
            values: n of ``[size]``, n at least 1, finite, in the cohort's order; they stay as they are.
            memory: ``[size]``, of the rounds before; None: there is none.

        Returns:
            ``[size]``, memory of its own.
        """

    @abstractmethod
    def bears(self, clients: int) -> int:
        """How many of so many may send anything, and the result stays near what the others have sent."""

    def remembered(self, combined: Tensor, memory: Tensor | None) -> Tensor | None:
        """What the next round gets as its memory, ``[size]``; None: nothing.

        Args:
            combined: what :meth:`combine` has returned in a round that has stepped.
            memory: with which it was called.
        """
        return None


class Majority(Defence):
    """A defence that less than half of the clients do not move far."""

    def bears(self, clients: int) -> int:
        return (clients - 1) // 2


DEFENCES: Registry[Callable[..., Defence]] = Registry("defence", makes=(Defence,))


def without_extremes(values: Sequence[Tensor], g: int) -> Tensor:
    """The mean of each coordinate ``[size]`` without its g largest and its g smallest values."""
    n = len(values)
    pieces = zip(*(torch.split(value, _PIECE) for value in values), strict=True)
    return torch.cat([torch.stack(piece).sort(dim=0).values[g : n - g].mean(dim=0) for piece in pieces])


def median(values: Sequence[Tensor]) -> Tensor:
    """The median of each coordinate ``[size]``; of an even number the mean of the two in the middle."""
    return without_extremes(values, (len(values) - 1) // 2)


def inner_products(values: Sequence[Tensor]) -> Tensor:
    """``[n, n]`` in fp64, on the CPU."""
    products = torch.zeros(len(values), len(values), dtype=torch.float64)
    for piece in zip(*(torch.split(value, _PIECE) for value in values), strict=True):
        rows = torch.stack(piece).double()
        products += (rows @ rows.T).cpu()
    return products


def distances(products: Tensor) -> Tensor:
    """``[n, n]``, between the vectors of these inner products."""
    squares = products.diagonal()
    return (squares[:, None] + squares[None, :] - 2 * products).clamp_(min=0).sqrt_()


def weighted_sum(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Of ``values`` with a weight above 0, added left to right; ``[size]``."""
    total = torch.zeros_like(values[0])
    for value, weight in zip(values, weights, strict=True):
        if weight > 0:
            total.add_(value, alpha=weight)
    return total


def check_share(share: float) -> float:
    """Refuse a share of hostile clients that no defence bears."""
    require(0 < share < 0.5, f"A defence's share of hostile clients is above 0 and below 0.5, got {share}.")
    return share
