"""Round: the server's values, and what stages send along with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from fedpart.updates.bounds import Bounds
from fedpart.updates.checks import LARGEST, largest_change
from fedpart.updates.cohort import OfAll
from fedpart.updates.residuals import Residuals


@dataclass(frozen=True, eq=False)
class Round:
    """What every client of a round starts from, and what becomes of their updates.

    Attributes:
        number: 1..
        w: ``[size]`` in partition order.
        psi: ``[P]``.
        residuals: of the clients, with ``error_feedback``.
        bounds: to which the server clips, where they follow the clients; None: those of the settings.
        norms: that the parts without a usual norm have had so far, where bounds follow the clients.
        of_all: what takes the place of the sum of the clients' updates, with a ``defence``; None: the sum.
    """

    number: int
    w: Tensor
    psi: Tensor
    residuals: Residuals | None = None
    bounds: Bounds | None = None
    norms: Mapping[int, Sequence[float]] = field(default_factory=dict)
    of_all: OfAll | None = None

    @cached_property
    def limit(self) -> float:
        """The largest change of a weight that is taken: who follows the clients' norms trusts none."""
        return LARGEST if self.bounds is None else largest_change(self.w)
