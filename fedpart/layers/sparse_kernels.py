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
from fedpart.layers.lanes_kernels import add_products, copy, list_by_filter, list_by_pixel, round16, together
from fedpart.layers.padded_kernels import lay_out


@cache
def kernels(vectors: int, halves: int) -> tuple[Kernel, Kernel]:
    """``gradient_of_weights`` and ``gradient_of_images``.

    Args:
        vectors: in a row of the kernel: the numbers that it covers, pixel by pixel.
        halves: 1 for bfloat16, 0 for float32.
    """
    step, numbers = together(vectors, bool(halves)), (16 << halves) * vectors

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
        down, lists = padded.shape[1], -(-filters // 16) * 16
        begins = np.full(-(-(cells + step - 1) // 16) * 16, -1, np.int32)
        for cell in range(cells):
            begins[cell] = 2 * x.itemsize * (cell // (width // 2) * down + cell % (width // 2) * depth)
        moved = np.zeros(16, np.int32)
        moved[1], moved[2], moved[3] = x.itemsize * depth, x.itemsize * down, x.itemsize * (down + depth)
        length = len(begins)
        places, factors = np.zeros((lists, length), np.int32), np.zeros((lists, length), x.dtype)
        counts, sums = np.zeros(lists, np.int64), np.zeros((lists, 16), np.float32)
        numbers_here = np.zeros(length * filters + 16, x.dtype)
        spots = np.zeros(len(numbers_here), np.uint8)
        for top in range(0, x.shape[0], height):
            lay_out(x, top, height, width, stacked, reach, padded)
            counts[:] = 0
            first = top // 2 * gradient.shape[1]
            copy(
                gradient.ctypes.data + x.itemsize * first,
                numbers_here.ctypes.data,
                x.itemsize * cells * filters,
            )
            copy(where.ctypes.data + first, spots.ctypes.data, cells * filters)
            for d in range(0, filters, 16):
                for cell in range(0, length, 16):
                    place = cell * filters + d
                    list_by_filter(
                        halves,
                        numbers_here.ctypes.data + x.itemsize * place,
                        spots.ctypes.data + place,
                        filters,
                        begins.ctypes.data + 4 * cell,
                        moved.ctypes.data,
                        places.ctypes.data + 4 * d * length,
                        factors.ctypes.data + x.itemsize * d * length,
                        length,
                        counts.ctypes.data + 8 * d,
                        sums.ctypes.data + 64 * d,
                    )
            for d in range(filters):
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
        for d in range(filters):
            bias[d] += sums[d].sum()

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
        begins = np.full(-(-(filters + step - 1) // 16) * 16, -1, np.int32)
        for d in range(filters):
            begins[d] = d * 64 * vectors
        length, lists = len(begins) + 16, 4 * cells
        places, factors = np.zeros((lists, length), np.int32), np.zeros((lists, length), out.dtype)
        counts = np.zeros(lists, np.int64)
        numbers_here = np.zeros(cells * filters + len(begins), out.dtype)
        spots = np.zeros(len(numbers_here), np.uint8)
        line, bits = np.zeros(out.shape[1] + 16, np.float32), np.zeros(out.shape[1] + 16, np.int16)
        for top in range(0, out.shape[0], height):
            padded[:] = 0
            counts[:] = 0
            first = top // 2 * gradient.shape[1]
            copy(
                gradient.ctypes.data + out.itemsize * first,
                numbers_here.ctypes.data,
                out.itemsize * cells * filters,
            )
            copy(where.ctypes.data + first, spots.ctypes.data, cells * filters)
            for cell in range(cells):
                for d in range(0, len(begins), 16):
                    place = cell * filters + d
                    list_by_pixel(
                        halves,
                        numbers_here.ctypes.data + out.itemsize * place,
                        spots.ctypes.data + place,
                        begins.ctypes.data + 4 * d,
                        places.ctypes.data + 16 * cell * length,
                        factors.ctypes.data + 4 * out.itemsize * cell * length,
                        length,
                        counts.ctypes.data + 32 * cell,
                    )
            for row in range(rows):
                for y in range(height):
                    for k in range(width):
                        m = 4 * (y // 2 * (width // 2) + k // 2) + 2 * (y % 2) + k % 2
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
