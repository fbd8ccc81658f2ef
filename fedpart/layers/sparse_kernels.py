"""The kernels of :mod:`fedpart.layers.sparse_convolution`: sums over the pixels that pooling has kept.

These are listed per image, and what belongs to a list is added up in registers. Vectors are of 64 bytes:
those of a row's last numbers run over into the next pixel's or into some room at the end.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fedpart.compiled import Kernel, jit
from fedpart.layers import lanes_kernels, padded_kernels
from fedpart.layers.lanes_kernels import add_products, copy, round16, together
from fedpart.layers.padded_kernels import lay_out


@cache
def kernels(vectors: int, halves: int) -> tuple[Kernel, Kernel]:
    """``gradient_of_weights`` and ``gradient_of_images``.

    Args:
        vectors: in a row of the kernel: the numbers that it covers, pixel by pixel.
        halves: 1 for bfloat16, 0 for float32.
    """
    step, numbers, shift = together(vectors, bool(halves)), (16 << halves) * vectors, 16 * halves

    def gradient_of_weights(
        gradient: Any, where: Any, x: Any, height: int, width: int, size: int, weight: Any, bias: Any
    ) -> None:
        """Derivatives of ``relu(max_pool2d(conv2d(x), 2))`` in weights and bias, added to them.

        Args:
            gradient: bits, ``[N * height / 2, width / 2 * filters]``.
            where: of ``pooling_kernels.pool``; like ``gradient``.
            x: bits of images, ``[N * height, width * channels]``; height, width: theirs, even.
            size: of the kernel, which has as many rows as columns.
            weight: float32, ``[rows, filters, numbers]``; all rows are one if there is one channel, and
                numbers are in the order of ``add_products``.
            bias: float32, ``[filters]``.
        """
        channels, filters = x.shape[1] // width, 2 * gradient.shape[1] // width
        stacked, reach = size if channels == 1 else 1, size // 2
        rows, depth, cells = size // stacked, channels * stacked, height // 2 * (width // 2)
        padded = np.zeros((height + rows - 1, (width + 2 * reach) * depth + numbers), x.dtype)
        length = cells + step
        places, factors = np.zeros((filters, length), np.int32), np.zeros((filters, length), x.dtype)
        counts, sums = np.zeros(filters, np.int64), np.zeros(filters, np.float32)
        down = padded.shape[1]
        moved = x.itemsize * np.array([0, depth, down, down + depth, 0])
        for top in range(0, x.shape[0], height):
            lay_out(x, top, height, width, stacked, reach, padded)
            counts[:] = 0
            sums[:] = 0
            for y in range(height // 2):
                row = top // 2 + y
                for k in range(width // 2):
                    first = x.itemsize * 2 * (y * down + k * depth)
                    for d in range(filters):
                        place, n = where[row, k * filters + d], counts[d]
                        value = np.int32(gradient[row, k * filters + d])
                        kept = place < 4
                        places[d, n], factors[d, n] = first + moved[place], value
                        counts[d] = n + kept
                        sums[d] += np.int32((value << shift) * kept).view(np.float32)
            for d in range(filters):
                bias[d] += sums[d]
                for n in range(counts[d], counts[d] + step):
                    places[d, n] = factors[d, n] = 0
                for row in range(rows):
                    add_products(
                        vectors,
                        halves,
                        places.ctypes.data + 4 * d * length,
                        factors.ctypes.data + x.itemsize * d * length,
                        counts[d],
                        padded.ctypes.data + x.itemsize * row * down,
                        weight.ctypes.data + 4 * (row * filters + d) * numbers,
                    )

    def gradient_of_images(
        gradient: Any, where: Any, height: int, width: int, size: int, weight: Any, out: Any
    ) -> None:
        """The derivative in the images.

        Args:
            gradient, where, height, width, size: as in ``gradient_of_weights``.
            weight: bits, ``[rows, filters, numbers]``, zeros where a row of the kernel has ended; such that
                ``add_products`` gives them in order.
            out: bits, ``[N * height, width * channels]``, written.
        """
        channels, filters = out.shape[1] // width, 2 * gradient.shape[1] // width
        stacked, reach = size if channels == 1 else 1, size // 2
        rows, depth, cells = size // stacked, channels * stacked, height // 2 * (width // 2)
        padded = np.zeros((height + rows - 1, (width + 2 * reach) * depth + numbers), np.float32)
        length, lists = filters + step, 5 * cells  # of the four pixels of a cell, and those that have none
        places, factors = np.zeros((lists, length), np.int32), np.zeros((lists, length), out.dtype)
        counts = np.zeros(lists, np.int64)
        line, bits = np.zeros(out.shape[1] + 16, np.float32), np.zeros(out.shape[1] + 16, np.int16)
        for top in range(0, out.shape[0], height):
            padded[:] = 0
            counts[:] = 0
            for y in range(height // 2):
                row = top // 2 + y
                for k in range(width // 2):
                    cell = 5 * (y * (width // 2) + k)
                    for d in range(filters):
                        m = cell + where[row, k * filters + d]
                        n = counts[m]
                        places[m, n] = d * 64 * vectors
                        factors[m, n] = gradient[row, k * filters + d]
                        counts[m] = n + 1
                    for m in range(cell, cell + 4):
                        for n in range(counts[m], counts[m] + step):
                            places[m, n] = factors[m, n] = 0
            for row in range(rows):
                for y in range(height):
                    for k in range(width):
                        m = 5 * (y // 2 * (width // 2) + k // 2) + 2 * (y % 2) + k % 2
                        add_products(
                            vectors,
                            halves,
                            places.ctypes.data + 4 * m * length,
                            factors.ctypes.data + out.itemsize * m * length,
                            counts[m],
                            weight.ctypes.data + 64 * row * filters * vectors,
                            padded.ctypes.data + 4 * ((y + row) * padded.shape[1] + k * depth),
                        )
            for y in range(height):
                if stacked == 1:
                    line[: out.shape[1]] = padded[y + reach, reach * channels : (reach + width) * channels]
                else:
                    line[:] = 0
                    for i in range(max(0, y + reach - height + 1), min(stacked, y + reach + 1)):
                        for k in range(width):
                            line[k] += padded[y + reach - i, (k + reach) * stacked + i]
                source = line.ctypes.data
                if halves:
                    for n in range(0, out.shape[1], 16):
                        round16(line.ctypes.data + 4 * n, bits.ctypes.data + 2 * n)
                    source = bits.ctypes.data
                wide = out.shape[1] * out.itemsize
                copy(source, out.ctypes.data + (top + y) * wide, wide)

    uses = (lanes_kernels.__file__, padded_kernels.__file__)
    return jit(gradient_of_weights, uses=uses), jit(gradient_of_images, uses=uses)
