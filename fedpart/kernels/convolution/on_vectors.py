"""A pooled convolution on vectors, whose derivatives are computed where pooling has kept a pixel.

Forward, sixteen images are computed abreast, one in each lane. Backward, three of four numbers of the
convolution's gradient are zero, or more, since pooling keeps one of four pixels, and ReLU those that are
positive: each of the others is one row of numbers times one factor, which no product of matrices can use.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.kernels.compiling import Kernel, jit
from fedpart.kernels.convolution import sparse
from fedpart.kernels.convolution.code import LANES, features
from fedpart.kernels.convolution.instructions import copy, transpose16
from fedpart.kernels.convolution.products import MOST_FILTERS, ORDER, pool_products
from fedpart.kernels.pooling import Pooling, bits_of


@jit
def _lay_abreast(x: Any, first: int, lanes: int, height: int, inside: int, lines: Any, padded: Any) -> None:
    """Write ``lanes`` images, from the ``first`` on, abreast where there are zeros around them.

    ``x`` are bits of images, ``[N * height, width * channels]``; ``inside`` are bytes of a row's padding at
    the left; ``lines`` takes a row of sixteen images. ``padded`` takes words, ``[planes, height + padding,
    words, 16]``: the second plane, if there is one, begins with half of the first word."""
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
    """Write a row of the result of ``lanes`` images, whose numbers take ``size`` bytes, a literal.

    The lower parts of the words ``abreast [numbers, 16]`` go through ``lines [16, numbers]`` into ``out``:
    row ``first``, and from an image to the next ``rows`` on."""
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
        """``relu(max_pool2d(conv2d(x), 2))`` of the bits of images, ``[N * height, width * channels]``, even.

        ``weight`` are words, ``[blocks, rows, steps, filters]``; ``begins`` the first filter of each block.
        ``out`` and ``where``, see :meth:`.Pooling.pool`, are written."""
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
                            filters, halves, start, right, down, bottom - top, end - left,
                            weight.ctypes.data + 4 * filters * ((block * rows + top) * steps + left),
                            4 * filters * steps, bias.ctypes.data + 4 * begins[block],
                            found.ctypes.data + 64 * place, spots.ctypes.data + 64 * place,
                        )  # fmt: skip
                row = (first * height + y) // 2
                _store_abreast(size, found, found_lines, row, lanes, height // 2, out)
                _store_abreast(1, spots, spots_lines, row, lanes, height // 2, where)

    return jit(convolve_and_pool)


_INSTRUCTIONS = {torch.float32: "avx512f", torch.bfloat16: "avx512bf16"}
_NUMBERS = 256  # that a row of the kernel covers: of more, products of matrices are as fast
_SUMS = 30  # vectors of float32 that fit into registers
_ORDER = torch.tensor(ORDER).argsort()


def computes(kind: torch.dtype, channels: int, size: int) -> bool:
    """Whether this processor's vectors can compute in that type, with such a kernel."""
    if size * channels > _NUMBERS or _INSTRUCTIONS.get(kind) not in features():
        return False
    return _layout(kind, channels, size, whole=True) is not None


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The result, rounded once, and where its numbers come from, both as :meth:`.Pooling.pool` has them.

    What is not finite makes the pixel to its left not a number, too, as far as a pair of bfloat16 reaches,
    and an infinite weight those at the border. ``x`` is channels-last, ``weight`` ``[filters, channels, k,
    k]``."""
    n, channels, height, width = x.shape
    filters, size = weight.shape[0], weight.shape[-1]
    idle = -n % LANES
    if 2 * idle > n:  # more than a third of all lanes
        found = F.conv2d(x, weight.to(x.dtype), bias.to(x.dtype), padding=size // 2)
        found = found.contiguous(memory_format=torch.channels_last)
        return Pooling.of(found).pool(found)
    filled = min((MOST_FILTERS, 5, 4), key=lambda many: -(-filters // many) * many)  # with the fewest twice
    many, pair = min(filters, filled), 4 // x.itemsize
    begins, members = _blocks(filters, many)
    rows = weight.permute(2, 3, 1, 0).reshape(size, -1, filters)[..., members]
    rows = rows.to(x.dtype).permute(2, 0, 3, 1)  # [blocks, size, many, size * channels]
    rows = _padded(rows, -size * channels % pair)
    words = rows.view(len(begins), size, many, -1, pair).transpose(2, 3).contiguous().view(torch.int32)
    out = torch.empty(n, height // 2, width // 2, filters, dtype=x.dtype)
    where = torch.empty(n * height // 2, width // 2 * filters, dtype=torch.uint8)
    convolve_and_pool(many, pair - 1)(
        bits_of(x.permute(0, 2, 3, 1)).reshape(n * height, -1), height, width, words.squeeze(-1).numpy(),
        begins.numpy(), bias.float().contiguous().numpy(), bits_of(out).reshape(where.shape), where.numpy(),
    )  # fmt: skip
    return out.permute(0, 3, 1, 2), where


def of_images(gradient: Tensor, where: Tensor, shape: torch.Size, weight: Tensor) -> Tensor:
    """The derivative in images of that ``shape``, channels-last, ``where`` being of ``forward``.

    ``gradient`` is of the result, ``[N, height / 2, width / 2, filters]``, contiguous."""
    n, channels, height, width = shape
    layout = _layout(gradient.dtype, channels, weight.shape[-1], whole=True)
    assert layout is not None
    out = torch.empty(n, height, width, channels, dtype=gradient.dtype)
    rows = F.pad(weight.permute(2, 0, 3, 1), (0, 0, 0, 0, 0, 0, 0, -layout.size % layout.stacked))
    rows = rows.reshape(-1, layout.stacked, *rows.shape[1:]).permute(0, 2, 3, 1, 4).flatten(3)
    rows = layout.ordered(_padded(rows, layout.depth - rows.shape[-1]).to(gradient.dtype))
    sparse.gradient_of_images(*layout)(
        bits_of(gradient).reshape(where.shape), where.numpy(), height, width,
        bits_of(rows.contiguous()), bits_of(out).reshape(n * height, -1),
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


def of_parameters(gradient: Tensor, where: Tensor, x: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Derivatives in weights of that ``shape`` and in the bias, not rounded.

    What is not finite in images makes fewer of them not a number than in a sum over all pixels."""
    n, channels, height, width = x.shape
    filters, size = shape[0], shape[-1]
    layout = _layout(x.dtype, channels, size)
    assert layout is not None
    rows = torch.zeros(-(-size // layout.stacked), filters, layout.vectors * layout.lanes)
    bias = torch.zeros(filters)
    sparse.gradient_of_weights(*layout)(
        bits_of(gradient).reshape(where.shape), where.numpy(),
        bits_of(x.permute(0, 2, 3, 1)).reshape(n * height, -1), height, width,
        rows.numpy(), bias.numpy(),
    )  # fmt: skip
    rows = layout.ordered(rows)[..., : size * layout.depth].reshape(-1, filters, size, layout.depth)
    rows = rows[..., : layout.stacked * channels].reshape(-1, filters, size, layout.stacked, channels)
    return rows.permute(1, 4, 0, 3, 2).flatten(2, 3)[:, :, :size], bias


@cache
def _blocks(filters: int, many: int) -> tuple[Tensor, Tensor]:
    """Where each block of ``many`` filters begins, the last may overlap the one before; its filters."""
    begins = torch.arange(0, filters, many, device="cpu").clamp(max=filters - many)
    return begins, begins[:, None] + torch.arange(many, device="cpu")


def _padded(rows: Tensor, zeros: int) -> Tensor:
    """With so many zeros behind each row."""
    return F.pad(rows, (0, zeros)) if zeros else rows


class _Layout(NamedTuple):
    """How kernels lay pixels out, and what they are compiled for: see :mod:`.sparse`."""

    channels: int
    size: int
    stacked: int
    depth: int
    halves: int

    @property
    def lanes(self) -> int:
        """Numbers in a vector."""
        return 16 << self.halves

    @property
    def vectors(self) -> int:
        """That cover a row of the kernel."""
        return -(-self.size * self.depth // self.lanes)

    @property
    def whole(self) -> bool:
        """Whether every pixel begins with a vector."""
        return self.depth % self.lanes == 0

    @property
    def loads(self) -> int:
        """Lines of the cache that all rows of the kernel touch: two for a vector that may begin anywhere."""
        return -(-self.size // self.stacked) * self.vectors * (1 if self.whole else 2)

    def ordered(self, rows: Tensor) -> Tensor:
        """Numbers of whole vectors in the order of their sums, or sums in the order of the numbers."""
        if not self.halves:
            return rows
        return rows.reshape(*rows.shape[:-1], -1, len(_ORDER))[..., _ORDER].flatten(-2)


@cache
def _layout(kind: torch.dtype, channels: int, size: int, whole: bool = False) -> _Layout | None:
    """Of those whose sums fit into registers the layout that loads least; None if there is none.

    With ``whole`` of those only in which every pixel begins with a vector."""
    halves = int(kind == torch.bfloat16)
    lanes = LANES << halves
    layouts = (
        _Layout(channels, size, stacked, depth, halves)
        for stacked in range(1, size + 1)
        for depth in (stacked * channels, -(-stacked * channels // lanes) * lanes)
    )
    fitting = (one for one in layouts if one.vectors << halves <= _SUMS and (one.whole or not whole))
    return min(fitting, key=lambda layout: layout.loads, default=None)
