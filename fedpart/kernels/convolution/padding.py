"""Memory of kernels: with room around an image, and behind its gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fedpart.kernels.compiling import jit
from fedpart.kernels.convolution.instructions import copy


@jit
def aligned(size: int) -> Any:
    """``[size]`` zeros, int16, from where a line of the cache begins."""
    found = np.zeros(size + 32, np.int16)
    first = -found.ctypes.data % 64 // 2
    return found[first : first + size]


@partial(jit, inline="always")  # numbers that it is given may be known where it is called
def lay_out(
    x: Any,
    top: int,
    height: int,
    width: int,
    channels: int,
    itemsize: int,
    stacked: int,
    depth: int,
    reach: int,
    out: Any,
) -> None:
    """Write an image where there are zeros around it.

    Args:
        x: bits of images, ``[N * height, width * channels]``; top: the image's first row.
        height, width, channels: of the image.
        itemsize: bytes of a number, which the compiler has to know for short copies.
        stacked: rows of pixels that are laid beside each other, as channels of one; 1 for none.
        depth: numbers from such a pixel to the next.
        reach: pixels of padding at the left and above.
        out: like ``x``, ``[rows, (width + reach) * depth or more]``, written where pixels are.
    """
    pixel, length = itemsize * channels, itemsize * width * channels
    for y in range(out.shape[0]):
        for i in range(max(0, reach - y), min(stacked, height + reach - y)):
            source = x.ctypes.data + (top + y + i - reach) * length
            target = out.ctypes.data + itemsize * (y * out.shape[1] + reach * depth + i * channels)
            if depth == channels:
                copy(source, target, length)
            else:
                for k in range(width):
                    copy(source + k * pixel, target + k * itemsize * depth, pixel)


@jit
def take(gradient: Any, where: Any, row: int, size: int, values: Any, spots: Any) -> None:
    """Copy so many gradients, which begin in that row, to where there is room behind them."""
    first = row * gradient.shape[1]
    copy(gradient.ctypes.data + gradient.itemsize * first, values.ctypes.data, gradient.itemsize * size)
    copy(where.ctypes.data + first, spots.ctypes.data, size)


@jit
def lists_for(gradient: Any, size: int, number: int, length: int) -> Any:
    """Zeros for ``size`` gradients of an image, and for ``number`` lists of what is kept of them.

    Returns:
        Gradients, and where they go to, with room behind them; places, and factors, ``[number, length]``; how
        many entries each list has.
    """
    values, spots = np.zeros(size, gradient.dtype), np.zeros(size, np.uint8)
    places, factors = np.zeros((number, length), np.int32), np.zeros((number, length), gradient.dtype)
    return values, spots, places, factors, np.zeros(number, np.int64)
