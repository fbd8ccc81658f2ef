"""Bounds: up to which length the parts of an update count, psi's gradient and the changes of cells."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpart.updates.update import Update

PSI = 0  # stands for psi among the parts; the others are the cells 1..
TINY = 1e-30  # what is no longer stays as it is: it may be denormal, and cannot be brought to a length of 1


@dataclass(frozen=True)
class Bound:
    """The L2 norm to which what is longer is scaled down.

    Attributes:
        norm: None: nothing is scaled.
        measured: whether the norm that it had is waited for.
        unit: whether ``norm`` is 1 because nobody knows yet how long the part usually is.
    """

    norm: float | None = None
    measured: bool = True
    unit: bool = False

    def shorten(self, tensor: Tensor) -> float:
        """Scale down what is longer, in place, and say how long it was."""
        norm = length(tensor)
        if self.norm is not None and norm > (TINY if self.unit else self.norm):
            tensor.mul_(self.norm / norm)
        return norm


FREE = Bound(measured=False)  # there is none
MEASURED = Bound()  # there is none, but the norm is wanted
UNIT = Bound(1.0, unit=True)

Bounds = Sequence[Bound]
"""By part."""
Norms = Mapping[int, float | Tensor]
"""By part the L2 norm, which may still be on its way from a device."""


def clip(update: Update, bounds: Bounds) -> Norms:
    """Scale down whatever is longer than its bound, in place.

    Args:
        update: a client's, not yet weighted.
        bounds: of its parts.

    Returns:
        The norms that its parts had; free cells are not looked at, and psi's norm is not waited for then.
    """
    norms = dict[int, float | Tensor]()
    for part, tensor in (update.deltas if update.psi is None else {PSI: update.psi, **update.deltas}).items():
        if bounds[part].measured:
            norms[part] = bounds[part].shorten(tensor)
        elif part == PSI:
            norms[part] = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norms


def length(tensor: Tensor) -> float:
    """The L2 norm."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def usual(norms: Iterable[float]) -> float:
    """The lower median of norms, which fewer than half of them move no further than the others lie.

    0 of fewer than two: of a single one nobody can say whether it is usual.
    """
    ordered = sorted(norms)
    return ordered[(len(ordered) - 1) // 2] if len(ordered) > 1 else 0.0


def known(norms: Mapping[int, Norms]) -> dict[int, dict[int, float]]:
    """The norms of clients, waited for."""
    return {client: {part: float(norm) for part, norm in own.items()} for client, own in norms.items()}
