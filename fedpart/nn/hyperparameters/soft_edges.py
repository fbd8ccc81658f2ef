"""Boxes with soft edges: masks that are differentiable in their width and place."""

import math

import torch
from torch import Tensor


def soft_box(length: int, centre: Tensor, width: Tensor, softness: float) -> Tensor:
    """About 1 inside of an interval and 0 outside: the difference of two sigmoids, one for each edge.

    At width 0 it is 0 everywhere, and it is odd in the width.

    Args:
        length: number of places, whose centres are ``(i + 1/2) / length``.
        centre, width: of the interval as fractions of the axis, ``[rows, 1]`` or broadcast to it.
        softness: scale of the sigmoids in places; an edge rises from 10% to 90% within 4.4 of them.

    Returns:
        ``[rows, length]``.
    """
    places = (torch.arange(length, device=centre.device, dtype=centre.dtype) + 0.5) / length
    offset, scale = places - centre, length / softness
    return torch.sigmoid(scale * (offset + width / 2)) - torch.sigmoid(scale * (offset - width / 2))


def check_softness(softness: float) -> None:
    """Refuse a softness that is not positive and finite, with a ValueError."""
    if not 0 < softness < math.inf:
        raise ValueError(
            f"The softness of an edge is positive, got {softness}; 0.5 is about two places from in to out."
        )
