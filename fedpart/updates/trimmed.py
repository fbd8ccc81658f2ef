"""A cohort's trimmed mean: an aggregate that a few clients cannot move far, whatever they send."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedpart.updates.update import Update

_PIECE = 2**16  # coordinates that are sorted at a time


def trimmed_mean(updates: Sequence[Update], trim: float) -> Update | None:
    """The coordinate-wise trimmed mean (Yin et al. 2018) of each partition over the clients that trained it.

    Of n values of a coordinate the g largest and the g smallest are left out, ``g = ceil(trim n)``, but
    of few so many only that one or two are left: their median. All updates are in memory at the same
    time, unlike those of a sum, and ``n`` times 2^16 numbers besides.

    Args:
        updates: of clients of equal weight, in the cohort's order.
        trim: share of the clients left out at either end, in (0, 0.5).

    Returns:
        An update of weight 1, with the means as its deltas and psi gradient, and sums of losses, examples and
        costs; None if there are no updates.
    """
    if not updates:
        return None
    mean = Update(
        loss=sum(one.loss for one in updates),
        examples=sum(one.examples for one in updates),
        unseen_loss=sum(one.unseen_loss for one in updates),
        unseen_examples=sum(one.unseen_examples for one in updates),
        visited=sum(one.visited for one in updates),
        seconds=sum(one.seconds for one in updates),
        clients=sum(one.clients for one in updates),
    )
    for j in sorted({j for one in updates for j in one.deltas}):
        mean.deltas[j] = _trimmed([one.deltas[j] for one in updates if j in one.deltas], trim)
        mean.weights[j] = 1.0
    gradients = [one.psi for one in updates if one.psi is not None]
    if gradients:
        mean.psi, mean.psi_weight = _trimmed(gradients, trim), 1.0
    mean.total_weight = 1.0
    return mean


def _trimmed(vectors: Sequence[Tensor], trim: float) -> Tensor:
    n = len(vectors)
    g = min(math.ceil(trim * n), (n - 1) // 2)
    pieces = zip(*(torch.split(vector, _PIECE) for vector in vectors), strict=True)
    means = [torch.stack(piece).sort(dim=0).values[g : n - g].mean(dim=0) for piece in pieces]
    return torch.cat(means)
