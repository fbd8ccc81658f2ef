"""A pooled convolution in bfloat16, on a processor that multiplies matrices in tiles (AMX), in one pass.

By itself a convolution writes images for pooling to read, four times as large as what is left of them, and
its derivative reads images that are zero in three of four places. For few channels this takes longer than to
compute them; here they stay in the nearest caches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.compiled import load

_COLUMNS = 32  # computed at a time
_ROWS = 16  # of a tile, at most
_FEW = 32  # channels: with more, oneDNN keeps a core busy by itself


def computes(kind: torch.dtype, channels: int, size: int) -> bool:
    """Whether this processor's tiles and numba can compute :func:`pooled` in that type, of such a kernel."""
    return kind == torch.bfloat16 and channels <= _FEW and size <= _ROWS and _tiles() is not None


def pooled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``relu(max_pool2d(conv2d(x, weight, bias), 2))`` with an odd kernel that keeps the images' size.

    Products are of bfloat16 and summed in float32; the result is rounded once, derivatives in parameters of
    float32 are not. What is not finite makes pixels beside it not a number, as far as 31 numbers to the left.

    Args:
        x: ``[N, channels, height, width]`` in channels-last layout, of even height and width, bfloat16;
            channels and kernel are such that :func:`computes`.
        weight: ``[filters, channels, k, k]``; bias: ``[filters]``.

    Returns:
        ``[N, filters, height / 2, width / 2]``, bfloat16, channels-last; differentiable once.
    """
    found: Tensor = _Pooled.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return found


def _tiles() -> Any:
    """The module of instructions, if this machine has them."""
    tiles = load("fedpart.layers.amx_kernels")
    return tiles if tiles is not None and tiles.available() else None


def _kernels() -> Any:
    return load("fedpart.layers.tile_kernels")


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        filters, size = weight.shape[0], weight.shape[-1]
        stacked = size if channels == 1 else 1
        out = torch.empty(n, height // 2, width // 2, filters, dtype=torch.bfloat16)
        where = torch.empty(n * height // 2, width // 2 * filters, dtype=torch.uint8)
        wide = torch.zeros(_in_tiles(filters))
        wide[:filters] = bias
        packed = _packed(weight.transpose(1, 2) if channels == 1 else weight)
        x = x.permute(0, 2, 3, 1).contiguous()
        shape = _tiles().shapes(_pixels(width))
        _kernels().convolve_and_pool(
            _bits(x, n * height), height, width, stacked, _bits(packed), wide.numpy(), shape,
            _bits(out, n * height // 2), where.numpy(),
        )  # fmt: skip
        ctx.save_for_backward(x, weight, where)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return _derivatives(ctx, gradient, *ctx.saved_tensors)


@torch.autograd.function.once_differentiable  # that it depends on the weights, too, is an error to ask for
def _derivatives(
    ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, where: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    bits = _bits(gradient.permute(0, 2, 3, 1).contiguous(), len(where))
    images = _of_images(bits, where, x.shape, weight) if ctx.needs_input_grad[0] else None
    if not any(ctx.needs_input_grad[1:]):
        return images, None, None
    return images, *_of_parameters(bits, where, x, weight.shape)


def _of_images(gradient: Any, where: Tensor, shape: torch.Size, weight: Tensor) -> Tensor:
    n, height, width, _ = shape
    out = torch.empty(shape, dtype=torch.bfloat16)
    packed = _packed(weight.flip(2, 3).transpose(0, 1))
    _kernels().gradient_of_images(
        gradient, where.numpy(), height, width, _bits(packed), _tiles().shapes(_pixels(width)),
        _bits(out, n * height),
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


def _of_parameters(gradient: Any, where: Tensor, x: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    n, height, width, _ = x.shape
    filters, channels, size, _ = shape
    blocks = 1 if channels == 1 else -(-channels // _ROWS)
    rows = size if channels == 1 else -(-channels // blocks)
    factors = size if channels == 1 else size * size * blocks
    weight = torch.zeros(factors + factors % 2, rows, _in_tiles(filters))
    bias = torch.zeros(_in_tiles(filters))
    _kernels().gradient_of_parameters(
        gradient, where.numpy(), _bits(x, n * height), height, width, size, _tiles().shapes(rows),
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


def _bits(x: Tensor, rows: int | None = None) -> Any:
    bits = x.view(torch.int16).numpy()
    return bits if rows is None else bits.reshape(rows, -1)
