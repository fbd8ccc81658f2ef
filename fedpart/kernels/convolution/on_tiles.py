"""A pooled convolution in bfloat16, on a processor that multiplies matrices in tiles (AMX), in one pass.

By itself a convolution writes images for pooling to read, four times as large as what is left of them, and
its derivative reads images that are zero in three of four places. For few channels this takes longer than to
compute them; here they stay in the nearest caches.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.kernels.convolution import amx, tiles
from fedpart.kernels.pooling import bits_of

_COLUMNS = 32  # computed at a time
_ROWS = 16  # of a tile, at most
_FEW = 32  # channels: with more, oneDNN keeps a core busy by itself


def computes(kind: torch.dtype, channels: int, size: int) -> bool:
    """Whether this processor's tiles can compute in that type, with such a kernel."""
    return kind == torch.bfloat16 and channels <= _FEW and size <= _ROWS and amx.available()


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """See :class:`.PooledConvolution`; the result is rounded once.

    What is not finite makes pixels beside it not a number, as far as 31 numbers to the left.
    """
    n, channels, height, width = x.shape
    filters, size = weight.shape[0], weight.shape[-1]
    stacked = size if channels == 1 else 1
    out = torch.empty(n, height // 2, width // 2, filters, dtype=torch.bfloat16)
    where = torch.empty(n * height // 2, width // 2 * filters, dtype=torch.uint8)
    wide = torch.zeros(_in_tiles(filters))
    wide[:filters] = bias
    packed = _packed(weight.transpose(1, 2) if channels == 1 else weight)
    tiles.convolve_and_pool(
        bits_of(x.permute(0, 2, 3, 1)).reshape(n * height, -1), height, width, stacked, bits_of(packed),
        wide.numpy(), amx.shapes(_pixels(width)), bits_of(out).reshape(where.shape), where.numpy(),
    )  # fmt: skip
    return out.permute(0, 3, 1, 2), where


def of_images(gradient: Tensor, where: Tensor, shape: torch.Size, weight: Tensor) -> Tensor:
    """The derivative in images of that ``shape``."""
    n, channels, height, width = shape
    out = torch.empty(n, height, width, channels, dtype=torch.bfloat16)
    packed = _packed(weight.flip(2, 3).transpose(0, 1))
    tiles.gradient_of_images(
        bits_of(gradient).reshape(where.shape), where.numpy(), height, width, bits_of(packed),
        amx.shapes(_pixels(width)), bits_of(out).reshape(n * height, -1),
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


def of_parameters(gradient: Tensor, where: Tensor, x: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Derivatives in weights of that ``shape`` and in the bias, not rounded."""
    n, _, height, width = x.shape
    filters, channels, size, _ = shape
    blocks = 1 if channels == 1 else -(-channels // _ROWS)
    rows = size if channels == 1 else -(-channels // blocks)
    factors = size if channels == 1 else size * size * blocks
    weight = torch.zeros(factors + factors % 2, rows, _in_tiles(filters))
    bias = torch.zeros(_in_tiles(filters))
    tiles.gradient_of_weights(
        bits_of(gradient).reshape(where.shape), where.numpy(),
        bits_of(x.permute(0, 2, 3, 1)).reshape(n * height, -1), height, width, size, amx.shapes(rows),
        weight.numpy(), bias.numpy(),
    )  # fmt: skip
    found = weight[:factors, :, :filters].reshape(size, size, -1, filters)[:, :, :channels]
    return found.permute(3, 2, 0, 1), bias[:filters]


def _packed(weight: Tensor) -> Tensor:
    """A kernel ``[filters, channels, high, across]`` as right factors, bfloat16.

    ``[columns / 32, high, steps, 16, 64]``: pairs of rows, in the order of channels-last images.
    """
    filters, channels, high, across = weight.shape
    rows = weight.permute(2, 3, 1, 0).reshape(high, across * channels, filters)
    rows = F.pad(rows.to(torch.bfloat16), (0, -filters % _COLUMNS, 0, -across * channels % 32))
    rows = rows.view(high, -1, 16, 2, rows.shape[-1] // 32, 32).permute(4, 0, 1, 2, 5, 3)
    return rows.reshape(*rows.shape[:4], 64)


def _in_tiles(filters: int) -> int:
    return filters + -filters % _COLUMNS


def _pixels(width: int) -> int:
    """Of a row, as many as are computed at a time: in parts of 16 or fewer, as equal as can be."""
    return -(-width // -(-width // _ROWS))
