"""The kernels of :mod:`.on_tiles`: an image at a time, in the nearest caches.

A convolution is a product of matrices without copies: what a row of the kernel covers lies side by side in
memory, from the first pixel's channels to the last one's, and rows of a tile may overlap. Numbers are written
16 lanes at a time: those of a pixel's last channels run over into the place of the next pixel, which is
written afterwards, or into some room at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpart.kernels.compiling import jit
from fedpart.kernels.convolution.amx import add, configuration, configure, load, store, zero
from fedpart.kernels.convolution.instructions import copy, pair16, pool16, round16, send16
from fedpart.kernels.convolution.padding import aligned, lay_out, take


@jit
def _two_rows(start: int, down: int, width: int, depth: int, rows: int, weight: Any, out: Any) -> None:
    """Convolve two rows of pixels.

    Args:
        start: address of the first number that the first pixel's kernel covers.
        down: bytes from a row of pixels to the next.
        width: pixels in a row; depth: numbers of a pixel; rows: of a tile, so many pixels at a time.
        weight: bits, ``[columns / 32, high, steps, 16, 64]``, of a kernel of so many rows.
        out: float32, ``[2, width, columns]``, written.
    """
    high, steps, columns = weight.shape[1], weight.shape[2], 32 * weight.shape[0]
    pixel, wide = 2 * depth, 4 * columns
    for pixels in range(0, width, rows):
        first = min(pixels, width - rows)
        for column in range(0, columns, 32):
            zero()
            right = weight.ctypes.data + column // 32 * high * steps * 2048
            for i in range(high):
                left = start + i * down + first * pixel
                for _ in range(steps):
                    add(left, left + down, pixel, right)
                    left += 64
                    right += 2048
            store(out.ctypes.data + first * wide + 4 * column, width * wide, wide)


@jit
def convolve_and_pool(
    x: Any, height: int, width: int, stacked: int, weight: Any, bias: Any, shape: Any, out: Any, where: Any
) -> None:
    """``relu(max_pool2d(conv2d(x), 2))``.

    Args:
        x: bits of images, ``[N * height, width * channels]``.
        height, width: of the images, even.
        stacked: rows of pixels that are laid beside each other first; see ``lay_out``.
        weight: as ``_two_rows`` has it; bias: float32, ``[columns]``.
        shape: of tiles, with as many rows as pixels are computed at a time.
        out: bits, ``[N * height / 2, width / 2 * filters]``, written.
        where: of ``pool16``; like ``out``, written.
    """
    channels, filters, columns = x.shape[1] // width, 2 * out.shape[1] // width, 32 * weight.shape[0]
    reach = (weight.shape[1] * stacked) // 2
    depth = channels * stacked
    across = ((width + 2 * reach) * depth + 63) // 32 * 32
    padded = aligned((height + 2 * reach) * across).reshape((-1, across))
    found = aligned(4 * width * columns).view(np.float32)
    most, spots = np.empty(out.shape[1] + columns, np.uint16), np.empty(out.shape[1] + columns, np.uint8)
    before, down, wide = np.zeros(64, np.uint8), 2 * padded.shape[1], 4 * columns
    configuration(before.ctypes.data)
    configure(shape.ctypes.data)
    for image in range(x.shape[0] // height):
        top = image * height
        if stacked == 1:
            lay_out(x, top, height, width, channels, 2, 1, channels, reach, padded)
        else:  # of one channel
            lay_out(x, top, height, width, 1, 2, stacked, stacked, reach, padded[:height])
        for y in range(0, height, 2):
            start = padded.ctypes.data + y * down
            _two_rows(start, down, width, depth, shape[48], weight, found)
            for k in range(width // 2):
                for d in range(0, columns, 16):
                    pool16(
                        found.ctypes.data + 2 * k * wide + 4 * d,
                        wide,
                        width * wide,
                        bias.ctypes.data + 4 * d,
                        most.ctypes.data + 2 * (k * filters + d),
                        spots.ctypes.data + k * filters + d,
                    )
            row = (top + y) // 2
            copy(most.ctypes.data, out.ctypes.data + 2 * row * out.shape[1], 2 * out.shape[1])
            copy(spots.ctypes.data, where.ctypes.data + row * out.shape[1], out.shape[1])
    configure(before.ctypes.data)


@jit
def gradient_of_weights(
    gradient: Any, where: Any, x: Any, height: int, width: int, size: int, shape: Any, weight: Any, bias: Any
) -> None:
    """Derivatives of ``convolve_and_pool`` in its parameters, added to ``weight`` and ``bias``.

    Products run over an image's pixels, those that are padded at its right among them, whose gradient is 0.
    Rows of a left factor are channels (a block of them, moved by the kernel's row and column) or, where there
    is one channel only, columns of the kernel (moved by its row).

    Args:
        gradient: bits, ``[N * height / 2, width / 2 * filters]``; where: of ``pool16``.
        x, height, width: as there; size: of the kernel, which has as many rows as columns.
        shape: of tiles, with as many rows as ``weight`` has.
        weight: float32, ``[factors, rows, columns]``: by the kernel's row, its column and the block of
            channels, or by the kernel's row; with one more where their number is odd.
        bias: float32, ``[columns]``.
    """
    channels, filters, columns = x.shape[1] // width, 2 * gradient.shape[1] // width, weight.shape[2]
    reach, full, wide = size // 2, width + size - 1, 4 * weight.shape[2]
    steps, rows = -(-height * full // 32), weight.shape[1]
    tile, across = rows * wide, 1 if channels == 1 else size
    blocks = 1 if channels == 1 else -(-channels // rows)
    planes = np.zeros((blocks * rows, (height + size - 1) * full + 32 + size), np.int16)
    apart = 2 if channels == 1 else 2 * planes.shape[1]
    offsets = np.zeros(weight.shape[0], np.int64)
    for m in range(size * across * blocks):
        i, j, block = m // (across * blocks), m // blocks % across, m % blocks
        offsets[m] = 2 * (i * full + j) + block * rows * apart
    pairs = aligned(32 * steps * columns)
    room = gradient.shape[1] + columns
    line, spots = np.zeros(room, np.int16), np.zeros(room, np.uint8)
    sums, before = np.zeros(columns, np.float32), np.zeros(64, np.uint8)
    configuration(before.ctypes.data)
    configure(shape.ctypes.data)
    for image in range(x.shape[0] // height):
        top = image * height
        sums[:] = 0
        for y in range(height // 2):
            take(gradient, where, top // 2 + y, gradient.shape[1], line, spots)
            for k in range(width // 2):
                for d in range(0, columns, 16):
                    upper = pairs.ctypes.data + d // 32 * steps * 2048 + (y * full + k) * 128 + d % 32 * 4
                    pair16(
                        line.ctypes.data + 2 * (k * filters + d),
                        spots.ctypes.data + k * filters + d,
                        upper,
                        upper + full // 2 * 128,
                        sums.ctypes.data + 4 * d,
                    )
        for d in range(columns):
            bias[d] += sums[d]
        for y in range(height):
            place, pixels = (y + reach) * full + reach, x.ctypes.data + 2 * (top + y) * x.shape[1]
            if channels == 1:
                copy(pixels, planes.ctypes.data + 2 * place, 2 * width)
            else:
                for k in range(width):
                    for c in range(channels):
                        planes[c, place + k] = x[top + y, k * channels + c]
        for m in range(0, weight.shape[0], 2):
            left0, left1 = planes.ctypes.data + offsets[m], planes.ctypes.data + offsets[m + 1]
            for column in range(0, columns, 32):
                total = weight.ctypes.data + m * tile + 4 * column
                load(total, tile, wide)
                right = pairs.ctypes.data + column // 32 * steps * 2048
                for k in range(steps):
                    add(left0 + 64 * k, left1 + 64 * k, apart, right + 2048 * k)
                store(total, tile, wide)
    configure(before.ctypes.data)


@jit
def gradient_of_images(
    gradient: Any, where: Any, height: int, width: int, weight: Any, shape: Any, out: Any
) -> None:
    """The derivative of ``convolve_and_pool`` in its images: a convolution with the turned kernel.

    Args:
        gradient, where, height, width: as in ``gradient_of_weights``.
        weight: as ``_two_rows`` has it, from filters to channels.
        shape: of tiles, as in ``convolve_and_pool``.
        out: bits, ``[N * height, width * channels]``, written.
    """
    channels, filters, columns = out.shape[1] // width, 2 * gradient.shape[1] // width, 32 * weight.shape[0]
    reach, lanes = weight.shape[1] // 2, -(-filters // 16) * 16
    room = gradient.shape[1] + lanes
    across = ((width + 2 * reach) * filters + 63) // 32 * 32
    padded = aligned((height + 2 * reach) * across).reshape((-1, across))
    found = aligned(4 * width * columns).view(np.float32)
    line, spots = np.zeros(room, np.int16), np.zeros(room, np.uint8)
    pixels = np.empty(out.shape[1] + columns, np.int16)
    before, down, wide = np.zeros(64, np.uint8), 2 * padded.shape[1], 4 * columns
    configuration(before.ctypes.data)
    configure(shape.ctypes.data)
    for image in range(out.shape[0] // height):
        top = image * height
        for y in range(height // 2):
            take(gradient, where, top // 2 + y, gradient.shape[1], line, spots)
            first = padded.ctypes.data + (reach + 2 * y) * down + 2 * reach * filters
            for k in range(width // 2):
                for number in range(4):
                    pixel = first + number // 2 * down + (2 * k + number % 2) * 2 * filters
                    for d in range(0, lanes, 16):
                        send16(
                            line.ctypes.data + 2 * (k * filters + d),
                            spots.ctypes.data + k * filters + d,
                            number,
                            pixel + 2 * d,
                        )
        for y in range(0, height, 2):
            start = padded.ctypes.data + y * down
            _two_rows(start, down, width, filters, shape[48], weight, found)
            for row in range(2):
                for k in range(width):
                    for c in range(0, columns, 16):
                        round16(
                            found.ctypes.data + (row * width + k) * wide + 4 * c,
                            pixels.ctypes.data + 2 * (k * channels + c),
                        )
                place = out.ctypes.data + 2 * (top + y + row) * out.shape[1]
                copy(pixels.ctypes.data, place, 2 * out.shape[1])
    configure(before.ctypes.data)
