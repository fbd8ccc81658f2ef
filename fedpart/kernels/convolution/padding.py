"""Memory of kernels: from where a line of the cache begins, and with room around an image."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpart.kernels.convolution.lanes import copy
from fedpart.kernels.door import jit


@jit
def aligned(size: int) -> Any:
    """``[size]`` zeros, int16, from where a line of the cache begins."""
    found = np.zeros(size + 32, np.int16)
    first = -found.ctypes.data % 64 // 2
    return found[first : first + size]


@jit
def lay_out(x: Any, top: int, height: int, width: int, stacked: int, reach: int, padded: Any) -> None:
    """Write an image where there are zeros around it.

    Args:
        x: bits of images, ``[N * height, width * channels]``; top: the image's first row.
        height, width: of the image.
        stacked: rows of pixels that are laid beside each other, as channels of one: as many as the kernel
            has, for images of one channel; 1 for none.
        reach: pixels of padding at the left, and above unless rows are stacked.
        padded: like ``x``, ``[height, more]`` or ``[height + 2 * reach, more]``, written where pixels are.
    """
    if stacked == 1:
        length, first = x.shape[1] * x.itemsize, x.itemsize * reach * (x.shape[1] // width)
        for y in range(height):
            inside = padded.ctypes.data + (y + reach) * padded.shape[1] * x.itemsize + first
            copy(x.ctypes.data + (top + y) * length, inside, length)
    else:
        for y in range(height):
            for i in range(max(0, reach - y), min(stacked, height + reach - y)):
                for k in range(width):
                    padded[y, (k + reach) * stacked + i] = x[top + y + i - reach, k]
