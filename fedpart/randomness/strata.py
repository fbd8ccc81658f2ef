"""Strata: an example's samples spread evenly over what is drawn, by Latin hypercubes (McKay et al. 1979)."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

STRATA: ContextVar[tuple[int, int] | None] = ContextVar("fedpart_strata", default=None)
"""Samples of an example, and rows of a draw that are stratified; None: none are."""


@contextmanager
def strata(samples: int, rows: int) -> Iterator[None]:
    """Within this context, draws of ``rows`` rows, ``samples`` of each example, are :func:`stratified`."""
    token = STRATA.set((samples, rows))
    try:
        yield
    finally:
        STRATA.reset(token)


def samples_of(shape: tuple[int, ...] | torch.Size, axis: int) -> int:
    """How many rows of a draw of ``shape``, along ``axis``, are to be stratified together; 1: none."""
    samples, rows = STRATA.get() or (1, 0)
    return samples if len(shape) > axis and shape[axis] == rows else 1


def stratified(draw: Tensor, order: Tensor, samples: int, axis: int = 0) -> Tensor:
    """Uniform numbers of an example's rows, one in each of ``samples`` equal parts of (0, 1).

    Both are uniform, with ``B * samples`` rows along ``axis``; ``order`` says which row gets which part, for
    every component anew, so that each number is uniform still. In single precision: all precisions agree.
    """
    shape = (*draw.shape[:axis], -1, samples, *draw.shape[axis + 1 :])
    places = order.reshape(shape).argsort(dim=axis + 1, stable=True).reshape(draw.shape)
    spread: Tensor = (places.float() + draw.float()) / samples
    return spread.clamp_max_(1 - torch.finfo(spread.dtype).eps / 2).to(draw.dtype)
