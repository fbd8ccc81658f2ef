"""The kernels of :mod:`fedpart.layers.pooling`: plain loops, of which numba vectorises the inner ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpart.compiled import jit

NOWHERE = np.uint8(4)  # the maximum is not positive: ReLU gives 0, and passes no gradient


@jit
def pool(x: Any, out: Any, where: Any, unsigned: Any, infinity: Any) -> None:
    """Pool and rectify.

    Args:
        x: bits of the images, ``[N, height, width, channels]``.
        out: bits of the result, ``[N, height // 2, width // 2, channels]``, written.
        where: which of the four was the first maximum, row by row; like ``out``, written.
        unsigned, infinity: all bits but the sign; bits of infinity.
    """
    count, height, width, channels = out.shape
    zero = unsigned - unsigned
    for n in range(count):
        for i in range(height):
            for j in range(width):
                for c in range(channels):
                    a, b = x[n, 2 * i, 2 * j, c], x[n, 2 * i, 2 * j + 1, c]
                    d, e = x[n, 2 * i + 1, 2 * j, c], x[n, 2 * i + 1, 2 * j + 1, c]
                    # What is not a number wins, whatever its sign.
                    a = a & unsigned if a & unsigned > infinity else a
                    b = b & unsigned if b & unsigned > infinity else b
                    d = d & unsigned if d & unsigned > infinity else d
                    e = e & unsigned if e & unsigned > infinity else e
                    largest = max(max(a, b), max(d, e))
                    place = np.uint8(3)
                    place = np.uint8(2) if d == largest else place
                    place = np.uint8(1) if b == largest else place
                    place = np.uint8(0) if a == largest else place
                    where[n, i, j, c] = place if largest > zero else NOWHERE
                    out[n, i, j, c] = max(largest, zero)


@jit
def send_back(gradient: Any, where: Any, out: Any) -> None:
    """Send each gradient to where the maximum was, and zeros elsewhere.

    Args:
        gradient: bits, ``[N, height // 2, width // 2, channels]``.
        where: of :func:`pool`.
        out: ``[N, height, width, channels]``, written.
    """
    count, height, width, channels = gradient.shape
    values = gradient.reshape(count * height, width * channels)
    places = where.reshape(values.shape)
    written = out.reshape(count * height, 4 * width * channels)
    four = np.empty((4, width * channels), gradient.dtype)
    parts = four.reshape(4, width, channels)
    rows = np.empty((2, 2 * width, channels), gradient.dtype)  # of the result: memory likes long writes
    flat = rows.reshape(rows.size)
    for row in range(len(values)):
        for k in range(width * channels):
            value, place = values[row, k], places[row, k]
            zero = value - value
            four[0, k] = value if place == 0 else zero
            four[1, k] = value if place == 1 else zero
            four[2, k] = value if place == 2 else zero
            four[3, k] = value if place == 3 else zero
        for j in range(width):
            for c in range(channels):
                rows[0, 2 * j, c] = parts[0, j, c]
            for c in range(channels):
                rows[0, 2 * j + 1, c] = parts[1, j, c]
            for c in range(channels):
                rows[1, 2 * j, c] = parts[2, j, c]
            for c in range(channels):
                rows[1, 2 * j + 1, c] = parts[3, j, c]
        for i in range(flat.size):
            written[row, i] = flat[i]
