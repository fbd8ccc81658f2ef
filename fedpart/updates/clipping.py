"""Clipping: psi's gradient and the changes of cells, scaled down to bounds of their norms."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedpart.updates.update import Update

PSI = 0  # stands for psi among the parts; the others are the cells 1..
MEASURED = sys.float_info.max  # a bound that no norm reaches: where it stands, norms are measured alone
TINY = 1e-30  # what is no longer stays as it is: it may be denormal, and cannot be brought to a length of 1

Bounds = Sequence[float]
"""By part the largest L2 norm. Infinity: there is none. 0: nobody knows yet how long that part usually is."""
Norms = Mapping[int, float | Tensor]
"""By part the L2 norm, which may still be on its way from a device."""


def clip(update: Update, bounds: Bounds) -> Norms:
    """Scale down whatever is longer than its bound, in place; where that is 0, to the length 1.

    Args:
        update: a client's, not yet weighted.
        bounds: of its parts.

    Returns:
        The norms that its parts had; cells without a bound are not looked at, and psi's is not waited for.
    """
    norms = dict[int, float | Tensor]()
    for part, tensor in (update.deltas if update.psi is None else {PSI: update.psi, **update.deltas}).items():
        bound = bounds[part]
        if bound == math.inf:
            if part == PSI:
                norms[part] = torch.linalg.vector_norm(tensor, dtype=torch.float64)
            continue
        norms[part] = shorten(tensor, bound)
    return norms


def shorten(tensor: Tensor, bound: float) -> float:
    """Scale down what is longer than its bound, in place, and say how long it was; see :func:`clip`."""
    norm = length(tensor)
    if norm > max(bound, TINY):
        tensor.mul_((bound or 1.0) / norm)
    return norm


def length(tensor: Tensor) -> float:
    """The L2 norm."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def usual(norms: Iterable[float]) -> float:
    """The lower median of norms, which fewer than half of them move no further than the others lie.

    0 of fewer than two: of a single one nobody can say whether it is usual.
    """
    found = sorted(norms)
    return found[(len(found) - 1) // 2] if len(found) > 1 else 0.0


def known(norms: Mapping[int, Norms]) -> dict[int, dict[int, float]]:
    """The norms of clients, waited for."""
    return {client: {part: float(norm) for part, norm in own.items()} for client, own in norms.items()}


def scale(total: Update, part: int, factor: float) -> None:
    """Multiply a part of a sum, if it is there, in place; the weight by which its mean divides stays."""
    tensor = total.psi if part == PSI else total.deltas.get(part)
    if tensor is not None:
        tensor.mul_(factor)
