"""Round: the server's values, handed over as one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedpart.federated.residuals import Residuals
from fedpart.updates.clipping import Bounds


@dataclass(frozen=True, eq=False)
class Round:
    """What every client of a round starts from.

    Attributes:
        number: 1..
        w: ``[size]`` in partition order.
        psi: ``[P]``.
        residuals: of the clients, with ``error_feedback``.
        bounds: to which the server clips, where they follow the clients; None: those of the protocol.
    """

    number: int
    w: Tensor
    psi: Tensor
    residuals: Residuals | None = None
    bounds: Bounds | None = None
