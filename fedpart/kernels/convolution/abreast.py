"""The forward kernel of :mod:`.on_vectors`: sixteen images abreast, one in each lane.

So no lane is idle, whatever the numbers of channels and filters. What is loaded of the images serves several
filters, and four pixels are pooled before they leave the registers.
"""

from functools import cache
from typing import Any

import numpy as np

from fedpart.kernels.compiling import Kernel, jit
from fedpart.kernels.convolution.instructions import copy, transpose16
from fedpart.kernels.convolution.products import MOST_FILTERS, pool_products


def filters_at_once(filters: int) -> int:
    """How many are computed at a time: such that few are computed twice, to fill up."""
    return min(filters, min((MOST_FILTERS, 5, 4), key=lambda many: -(-filters // many) * many))


@jit
def _lay_abreast(x: Any, first: int, lanes: int, height: int, inside: int, lines: Any, padded: Any) -> None:
    """Write images abreast where there are zeros around them.

    Args:
        x: bits of images, ``[N * height, width * channels]``; first, lanes: from which image on, how many.
        height: of the images; inside: bytes of a row's padding at the left.
        lines: a row of sixteen images with padding, ``[16, more than 4 * words]`` bytes, written there.
        padded: words, ``[planes, height + padding, words, 16]``, written there. The second plane, if there
            is one, begins with half of the first word.
    """
    length, down, reach = x.shape[1] * x.itemsize, 64 * padded.shape[2], (padded.shape[1] - height) // 2
    for y in range(height):
        for lane in range(lanes):
            row = (first + lane) * height + y
            copy(x.ctypes.data + row * length, lines.ctypes.data + lane * lines.shape[1] + inside, length)
        for plane in range(padded.shape[0]):
            out = padded.ctypes.data + (plane * padded.shape[1] + reach + y) * down
            for n in range(0, padded.shape[2], 16):
                start = lines.ctypes.data + 2 * plane + 4 * n
                transpose16(4, start, lines.shape[1], out + 64 * n, 64)


@jit
def _store_abreast(size: int, abreast: Any, lines: Any, first: int, lanes: int, rows: int, out: Any) -> None:
    """Write a row of the result of every image.

    Args:
        size: a literal: of a number, bytes.
        abreast: words, ``[numbers, 16]``, of which the lower parts are taken; lines: ``[16, numbers]``,
            written.
        first: the first image's row in ``out``; lanes: images; rows: from an image to the next.
        out: ``[N * rows, fewer numbers]``, written there.
    """
    wide, length = lines.shape[1] * lines.itemsize, out.shape[1] * out.itemsize
    for n in range(0, len(abreast), 16):
        start = lines.ctypes.data + n * lines.itemsize
        transpose16(size, abreast.ctypes.data + 64 * n, 64, start, wide)
    for lane in range(lanes):
        row = first + lane * rows
        copy(lines.ctypes.data + lane * wide, out.ctypes.data + row * length, length)


@cache
def convolve_and_pool(filters: int, halves: int) -> Kernel:
    """The kernel in bfloat16 (``halves``: 1) or float32 (0), so many filters at a time."""
    size = 4 >> halves

    def convolve_and_pool(
        x: Any, height: int, width: int, weight: Any, begins: Any, bias: Any, out: Any, where: Any
    ) -> None:
        """``relu(max_pool2d(conv2d(x), 2))``.

        Args:
            x: bits of images, ``[N * height, width * channels]``.
            height, width: of the images, even.
            weight: words, ``[blocks, rows, steps, filters]``: of what the kernel's rows cover, word by word.
            begins: the first filter of each block, ``[blocks]``.
            bias: float32, of all filters.
            out: bits, ``[N * height / 2, width / 2 * all filters]``, written.
            where: which of the four was the first maximum, row by row, or NOWHERE; like ``out``, written.
        """
        channels, every = x.shape[1] // width, 2 * out.shape[1] // width
        blocks, rows, steps, _ = weight.shape
        reach, pixel = rows // 2, channels * size
        words = ((width + 2 * reach) * pixel + 63) // 64 * 16
        odd = pixel // 2 % 2  # pixels begin with a word, or with half of one
        lines = np.zeros((16, 4 * words + 64), np.uint8)
        padded = np.zeros((1 + odd, height + 2 * reach, words, 16), np.int32)
        down = 64 * words
        right = 16 * (pixel - 2 * odd) + odd * padded.shape[1] * down
        numbers = (out.shape[1] + 15) // 16 * 16
        found, spots = np.zeros((numbers, 16), np.int32), np.zeros((numbers, 16), np.int32)
        found_lines, spots_lines = np.zeros((16, numbers), out.dtype), np.zeros((16, numbers), np.uint8)
        for first in range(0, x.shape[0] // height, 16):
            lanes = min(16, x.shape[0] // height - first)
            _lay_abreast(x, first, lanes, height, reach * pixel, lines, padded)
            for y in range(0, height, 2):
                top, bottom = max(0, reach - 1 - y), min(rows, height + reach - y)  # the others are padding
                for k in range(0, width, 2):
                    left = max(0, reach - 1 - k) * pixel // 4
                    end = min(steps, (min(rows, width + reach - k) * pixel + 3) // 4)
                    start = padded.ctypes.data + (y + top) * down + 16 * k * pixel + 64 * left
                    for block in range(blocks):
                        place = k // 2 * every + begins[block]
                        pool_products(
                            filters,
                            halves,
                            start,
                            right,
                            down,
                            bottom - top,
                            end - left,
                            weight.ctypes.data + 4 * filters * ((block * rows + top) * steps + left),
                            4 * filters * steps,
                            bias.ctypes.data + 4 * begins[block],
                            found.ctypes.data + 64 * place,
                            spots.ctypes.data + 64 * place,
                        )
                row = (first * height + y) // 2
                _store_abreast(size, found, found_lines, row, lanes, height // 2, out)
                _store_abreast(1, spots, spots_lines, row, lanes, height // 2, where)

    return jit(convolve_and_pool)
