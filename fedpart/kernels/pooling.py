"""Max-pooling by 2 x 2 and ReLU in one pass: plain loops, of which numba vectorises the inner ones.

A row of the result is computed at a time, from four rows of as many numbers, one for each place in a pixel
of four. So the loops that compute are long, however few channels there are. Between these rows and the
image, pixels are copied by words; where their number is known to the compiler, that is a few instructions.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedpart.kernels.compiling import Kernel, jit

NOWHERE = np.uint8(4)  # the maximum is not positive: ReLU gives 0, and passes no gradient
_INTEGERS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
_FEW = 32  # words: pixels of up to so many get kernels of their own; others' loops are long enough


class Pooling(NamedTuple):
    """Pools images of one shape and type, ``rows`` of the result, by so many ``words`` of a type a pixel."""

    shape: torch.Size
    rows: int
    word: torch.dtype
    words: int

    @classmethod
    def of(cls, x: Tensor) -> Pooling:
        """For images ``[N, channels, height, width]``, bfloat16 or float32, of even height and width."""
        n, channels, height, _ = x.shape
        in_pairs = x.itemsize == 2 and channels % 2 == 0
        word, words = (torch.int32, channels // 2) if in_pairs else (_INTEGERS[x.dtype], channels)
        return cls(x.shape, n * (height // 2), word, words)

    def pool(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``relu(max_pool2d(x, 2))`` of ``x`` of that shape, channels-last, and where the maxima were.

        That is, for each number in the order of memory, the place of the first maximum among the four, row by
        row, or ``NOWHERE`` if it is not positive: uint8, ``[N * (height // 2), width // 2 * channels]``.
        """
        n, channels, height, width = self.shape
        out = torch.empty((n, height // 2, width // 2, channels), dtype=x.dtype)
        where = torch.empty((self.rows, out.numel() // self.rows), dtype=torch.uint8)
        bits = bits_of(out).reshape(where.shape)
        kernel, _ = self._kernels
        kernel(self._in_words(x), self.words, bits, where.numpy(), *_bounds(x.dtype))
        return out.permute(0, 3, 1, 2), where

    def send_back(self, gradient: Tensor, where: Tensor) -> Tensor:
        """The derivative in the images, channels-last, given that of what ``pool`` has returned."""
        bits = bits_of(gradient.permute(0, 2, 3, 1).contiguous()).reshape(where.shape)
        out = torch.empty(self.shape, dtype=gradient.dtype, memory_format=torch.channels_last)
        _, kernel = self._kernels
        kernel(bits, where.numpy(), self.words, self._in_words(out))
        return out

    def _in_words(self, x: Tensor) -> Any:
        """The memory of images, ``[rows, 4 * width * words]``."""
        return x.detach().permute(0, 2, 3, 1).reshape(self.rows, -1).view(self.word).numpy()

    @property
    def _kernels(self) -> tuple[Kernel, Kernel]:
        """To pool, and to send gradients back."""
        return _kernels(self.words if self.words <= _FEW else 0)


def bits_of(x: Tensor) -> Any:
    """The bits of ``x``, as numpy's integers: those of positive numbers are ordered as the numbers are."""
    return x.detach().view(_INTEGERS[x.dtype]).numpy()


@cache
def _bounds(dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """All bits but the sign; the bits of infinity and of minus infinity: more than these are not a number."""
    integer = _INTEGERS[dtype]
    infinity, lowest = torch.tensor([torch.inf, -torch.inf], dtype=dtype).view(integer).numpy()
    return infinity.dtype.type(torch.iinfo(integer).max), infinity, lowest


@jit
def _largest(four: Any, out: Any, where: Any, zero: Any, lowest: Any) -> bool:
    """A row of ``pool``; whether something in it is not a number and has a sign, so that it has lost."""
    lost = False
    for k in range(len(out)):
        a, b, d, e = four[0, k], four[1, k], four[2, k], four[3, k]
        largest = max(max(a, b), max(d, e))
        place = np.uint8(3)
        place = np.uint8(2) if d == largest else place
        place = np.uint8(1) if b == largest else place
        place = np.uint8(0) if a == largest else place
        where[k] = place if largest > zero else NOWHERE
        out[k] = max(largest, zero)
        lost |= (lowest < a) & (a < zero) | (lowest < b) & (b < zero)
        lost |= (lowest < d) & (d < zero) | (lowest < e) & (e < zero)
    return lost


@cache
def _kernels(words: int) -> tuple[Kernel, Kernel]:
    """``pool`` and ``send_back`` for pixels of so many words; 0: of any number, known when they run."""

    def pool(x: Any, any_words: int, out: Any, where: Any, unsigned: Any, infinity: Any, lowest: Any) -> None:
        """Pool and rectify words of images ``x [N * height, 4 * width * words]`` into the bits ``out``.

        ``out`` and ``where`` are ``[N * height, width * channels]``; the rest is as ``_bounds`` has it.
        """
        length = words if words else any_words
        zero = unsigned - unsigned
        width = x.shape[1] // (4 * length)
        four = np.empty((4, out.shape[1]), out.dtype)
        parts = four.view(x.dtype)
        for row in range(x.shape[0]):
            for i in range(2):
                for j in range(width):
                    here, there = 2 * (i * width + j) * length, j * length
                    for k in range(length):
                        parts[2 * i, there + k] = x[row, here + k]
                    for k in range(length):
                        parts[2 * i + 1, there + k] = x[row, here + length + k]
            if _largest(four, out[row], where[row], zero, lowest):
                four[:] = np.where(four & unsigned > infinity, four & unsigned, four)  # these are the largest
                _largest(four, out[row], where[row], zero, lowest)

    def send_back(gradient: Any, where: Any, any_words: int, out: Any) -> None:
        """Send each gradient, like ``out`` of ``pool``, to where the maximum was, and zeros elsewhere."""
        length = words if words else any_words
        width = out.shape[1] // (4 * length)
        four = np.empty((4, gradient.shape[1]), gradient.dtype)
        parts = four.view(out.dtype)
        for row in range(out.shape[0]):
            for k in range(gradient.shape[1]):
                value, place = gradient[row, k], where[row, k]
                zero = value - value
                four[0, k] = value if place == 0 else zero
                four[1, k] = value if place == 1 else zero
                four[2, k] = value if place == 2 else zero
                four[3, k] = value if place == 3 else zero
            for i in range(2):
                for j in range(width):
                    here, there = 2 * (i * width + j) * length, j * length
                    for k in range(length):
                        out[row, here + k] = parts[2 * i, there + k]
                    for k in range(length):
                        out[row, here + length + k] = parts[2 * i + 1, there + k]

    return jit(pool), jit(send_back)
