"""The backward kernels of :mod:`.on_vectors`: sums over the pixels that pooling has kept.

These are listed per image, and what belongs to a list is added up in registers. Rows of pixels may be
stacked beside each other, as if they were channels of one: so little room is wasted where pixels begin with
a vector, of 64 bytes. Elsewhere vectors run over into the next pixel, or into room at the end."""

from functools import cache, partial
from typing import Any

import numpy as np

from fedpart.kernels.compiling import Kernel, jit
from fedpart.kernels.convolution.instructions import add, copy, list_by_filter, list_by_pixel, round16
from fedpart.kernels.convolution.products import add_products, products_at_once, slide_products


@jit
def _aligned(size: int) -> Any:
    """``[size]`` zeros, int16, from where a line of the cache begins."""
    room = np.zeros(size + 32, np.int16)
    first = -room.ctypes.data % 64 // 2
    return room[first : first + size]


@partial(jit, inline="always")  # numbers that it is given may be known where it is called
def _lay_out(
    x: Any, top: int, height: int, width: int, channels: int, itemsize: int, stacked: int, depth: int,
    reach: int, out: Any,
) -> None:  # fmt: skip
    """Write an image, from row ``top`` on, where there are ``reach`` zeros around it.

    ``x`` are bits of images, ``[N * height, width * channels]``, and ``out`` ``[rows, (width + reach) * depth
    or more]``: ``stacked`` rows beside each other, ``depth`` numbers from such a pixel to the next. The
    compiler has to know ``itemsize``, the bytes of a number, for short copies."""
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
def _copy_gradients(gradient: Any, where: Any, row: int, size: int, values: Any, spots: Any) -> None:
    """Copy so many gradients, which begin in that row, to where there is room behind them."""
    first = row * gradient.shape[1]
    copy(gradient.ctypes.data + gradient.itemsize * first, values.ctypes.data, gradient.itemsize * size)
    copy(where.ctypes.data + first, spots.ctypes.data, size)


@jit
def _lists_for(gradient: Any, size: int, number: int, length: int) -> Any:
    """Zeros for ``size`` gradients of an image and their spots, and for lists of what is kept of them.

    Gradients and spots have room behind them; places and factors are ``[number, length]``; then counts.
    """
    values, spots = np.zeros(size, gradient.dtype), np.zeros(size, np.uint8)
    places, factors = np.zeros((number, length), np.int32), np.zeros((number, length), gradient.dtype)
    return values, spots, places, factors, np.zeros(number, np.int64)


@cache
def gradient_of_weights(channels: int, size: int, stacked: int, depth: int, halves: int) -> Kernel:
    """The kernel for derivatives in weights and bias; ``size`` are rows of the convolution's kernel.

    ``stacked`` rows of pixels lie beside each other, ``depth`` numbers from such a pixel to the next;
    ``halves`` is 1 for bfloat16, 0 for float32."""
    itemsize, lanes = 4 >> halves, 16 << halves
    vectors, reach, groups = -(-size * depth // lanes), size // 2, -(-size // stacked)
    step, numbers = products_at_once(vectors, halves), lanes * vectors

    def gradient_of_weights(
        gradient: Any, where: Any, x: Any, height: int, width: int, weight: Any, bias: Any
    ) -> None:
        """Derivatives of ``relu(max_pool2d(conv2d(x), 2))`` in weights and bias, added to them.

        ``gradient`` are bits, ``[N * height / 2, width / 2 * filters]``, as is ``where``; ``x`` bits of
        images, ``[N * height, width * channels]``. ``weight`` is float32, ``[groups, filters, numbers]``: of
        as many rows of the kernel as are stacked, in the order of ``add_products``."""
        filters, cells = 2 * gradient.shape[1] // width, height // 2 * (width // 2)
        high, down = height + (groups - 1) * stacked, -(-((width - 1) * depth + numbers) // lanes) * lanes
        padded = _aligned(high * down * itemsize // 2).view(x.dtype).reshape((high, down))
        length, lists = -(-(cells + step - 1) // 16) * 16, -(-filters // 16) * 16
        begins, moved = np.full(length, -1, np.int32), np.zeros(16, np.int32)
        for cell in range(cells):
            y, k = divmod(cell, width // 2)
            begins[cell] = 2 * itemsize * (y * down + k * depth)
        for place in range(4):
            moved[place] = itemsize * (place // 2 * down + place % 2 * depth)
        values, spots, places, factors, counts = _lists_for(gradient, length * filters + 16, lists, length)
        totals = np.zeros((lists, 16), np.float32)
        for top in range(0, x.shape[0], height):
            _lay_out(x, top, height, width, channels, itemsize, stacked, depth, reach, padded)
            _copy_gradients(gradient, where, top // 2, cells * filters, values, spots)
            counts[:] = 0
            for d in range(0, filters, 16):
                for cell in range(0, length, 16):
                    list_by_filter(
                        halves, values.ctypes.data + itemsize * (cell * filters + d),
                        spots.ctypes.data + cell * filters + d, filters, begins.ctypes.data + 4 * cell,
                        moved.ctypes.data, places.ctypes.data + 4 * d * length,
                        factors.ctypes.data + itemsize * d * length, length, counts.ctypes.data + 8 * d,
                        totals.ctypes.data + 64 * d,
                    )  # fmt: skip
            for d in range(filters):
                for group in range(groups):
                    add_products(
                        vectors, halves, places.ctypes.data + 4 * d * length,
                        factors.ctypes.data + itemsize * d * length, counts[d],
                        padded.ctypes.data + itemsize * group * stacked * down,
                        weight.ctypes.data + 4 * (group * filters + d) * numbers,
                    )  # fmt: skip
        for d in range(filters):
            bias[d] += totals[d].sum()

    return jit(gradient_of_weights)


@cache
def gradient_of_images(channels: int, size: int, stacked: int, depth: int, halves: int) -> Kernel:
    """The kernel for the derivative in images; arguments as above, ``depth`` being one of whole vectors."""
    itemsize, lanes = 4 >> halves, 16 << halves
    vectors, reach, groups, step = depth // lanes, size // 2, -(-size // stacked), 1 + halves

    def gradient_of_images(gradient: Any, where: Any, height: int, width: int, weight: Any, out: Any) -> None:
        """The derivative in the images, ``out``: bits, ``[N * height, width * channels]``, written.

        ``weight``: bits, ``[groups, filters, size * depth]``, such that ``slide_products`` gives their order.
        """
        filters, cells, wide = 2 * gradient.shape[1] // width, height // 2 * (width // 2), out.shape[1]
        begins = np.full(-(-(filters + step - 1) // 16) * 16, -1, np.int32)
        for d in range(filters):
            begins[d] = itemsize * d * size * depth
        length, lists = len(begins), 4 * cells
        values, spots, places, factors, counts = _lists_for(gradient, cells * filters + length, lists, length)
        found = np.zeros((height, wide + 16), np.float32)
        sums = _aligned(2 * (width + size - 1) * depth).view(np.float32)
        bits = np.zeros(wide + 16, np.int16)
        for top in range(0, out.shape[0], height):
            _copy_gradients(gradient, where, top // 2, cells * filters, values, spots)
            counts[:] = 0
            for cell in range(cells):
                y, k = divmod(cell, width // 2)
                pixel = 2 * (y * width + k)
                for d in range(0, length, 16):
                    list_by_pixel(
                        halves, values.ctypes.data + itemsize * (cell * filters + d),
                        spots.ctypes.data + cell * filters + d, begins.ctypes.data + 4 * d,
                        places.ctypes.data + 4 * pixel * length,
                        factors.ctypes.data + itemsize * pixel * length, length,
                        counts.ctypes.data + 8 * pixel, width,
                    )  # fmt: skip
            found[:] = 0
            for group in range(groups):
                for y in range(height):
                    slide_products(
                        vectors, size, halves, places.ctypes.data + 4 * y * width * length,
                        factors.ctypes.data + itemsize * y * width * length, length,
                        counts.ctypes.data + 8 * y * width, width,
                        weight.ctypes.data + itemsize * group * filters * size * depth, sums.ctypes.data,
                    )  # fmt: skip
                    first = y + group * stacked - reach
                    for i in range(max(0, -first), min(stacked, size - group * stacked, height - first)):
                        source = sums.ctypes.data + 4 * (reach * depth + i * channels)
                        line = found.ctypes.data + 4 * (first + i) * found.shape[1]
                        for k in range(width):
                            add(channels, source + 4 * k * depth, line + 4 * k * channels)
            for y in range(height):
                line = found.ctypes.data + 4 * y * found.shape[1]
                if halves:
                    for n in range(0, wide, 16):
                        round16(line + 4 * n, bits.ctypes.data + 2 * n)
                    line = bits.ctypes.data
                copy(line, out.ctypes.data + itemsize * (top + y) * wide, itemsize * wide)

    return jit(gradient_of_images)
