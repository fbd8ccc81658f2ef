"""Explicit noise: every random number inside a loss comes from a named stream that the caller passes in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedpart.rng import generator

_HALF_ULP = 2.0**-25  # float32 draws are multiples of 2**-24 in [0, 1); shifted, they lie inside (0, 1)


class NoiseKey(NamedTuple):
    """Names one stream of noise; see :func:`fedpart.rng.generator`."""

    seed: int
    purpose: str
    counter: tuple[int, ...] = ()


class Noise:
    """The random numbers of one evaluation of the loss: the same key gives the same numbers, every time.

    Args:
        key: the stream's name.
        device: where the numbers are needed. They are drawn on the CPU, so devices agree on them.
        dtype: floating type of the numbers; drawn as float32 whatever it is, so precisions agree on them.
    """

    def __init__(self, key: NoiseKey, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        self.key, self.device, self.dtype = key, torch.device(device), dtype
        self._stream = generator(key.seed, key.purpose, *key.counter)
        self._repeat = 1

    def uniform(self, shape: tuple[int, ...] | torch.Size) -> Tensor:
        """The next numbers, uniform on the open interval (0, 1), of ``shape``."""
        rows = (shape[0] // self._repeat, *shape[1:]) if shape else ()
        draw = torch.from_numpy(np.asarray(self._stream.random(rows, dtype="float32"))).add_(_HALF_ULP)
        draw = draw.to(self.device, self.dtype)
        return draw if self._repeat == 1 else draw.repeat_interleave(self._repeat, 0)

    @contextmanager
    def repeated(self, times: int) -> Iterator[None]:
        """Within this context, every draw repeats each of its rows ``times`` times (shared by S samples)."""
        self._repeat = times
        try:
            yield
        finally:
            self._repeat = 1

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within this context, :func:`uniform` draws from the beginning of this stream."""
        self._stream = generator(self.key.seed, self.key.purpose, *self.key.counter)
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)


_ACTIVE: ContextVar[Noise | None] = ContextVar("fedpart_noise", default=None)


def uniform(shape: tuple[int, ...] | torch.Size, like: Tensor) -> Tensor:
    """Uniform noise on (0, 1) for a layer: the loss's own stream, or torch's generator outside of a loss.

    A layer or transform of your own calls this instead of ``torch.rand``; everything that fedpart promises
    about reproducibility and engines then holds for it too.

    Args:
        shape: shape of the result.
        like: tensor whose device and dtype the result takes.
    """
    noise = _ACTIVE.get()
    if noise is None:
        return torch.rand(shape, device=like.device, dtype=like.dtype)
    return noise.uniform(shape).to(like.device, like.dtype)


def normal(shape: tuple[int, ...] | torch.Size, like: Tensor) -> Tensor:
    """Standard normal noise for a layer; see :func:`uniform`."""
    return torch.special.ndtri(uniform(shape, like))
