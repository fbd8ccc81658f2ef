"""Round: the server's values and its way to sum, handed over as one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from fedpart.federated.residuals import Residuals
from fedpart.updates.checks import LARGEST, largest_change
from fedpart.updates.clipping import Bounds
from fedpart.updates.cohort import OfAll


@dataclass(frozen=True, eq=False)
class Round:
    """What every client of a round starts from, and what becomes of their updates.

    Attributes:
        number: 1..
        w: ``[size]`` in partition order.
        psi: ``[P]``.
        residuals: of the clients, with ``error_feedback``.
        bounds: to which the server clips, where they follow the clients; None: those of the protocol.
        of_all: what takes the place of the sum of the clients' updates, with a ``defence``; None: the sum.
    """

    number: int
    w: Tensor
    psi: Tensor
    residuals: Residuals | None = None
    bounds: Bounds | None = None
    of_all: OfAll | None = None

    @cached_property
    def limit(self) -> float:
        """The largest change of a weight that is taken: who follows the clients' norms trusts none."""
        return LARGEST if self.bounds is None else largest_change(self.w)
