"""A pooled convolution whose derivatives are computed where pooling has kept a pixel, and nowhere else.

Of four pixels pooling keeps one, in every channel another, and ReLU keeps those that are positive. So three
of four numbers of the convolution's gradient are zero, or more, which a product of matrices cannot make use
of. Where few channels lie side by side, each of the others is one row of numbers times one factor.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.compiled import Kernel, load
from fedpart.layers.pooling import bits_of, pool

_LANES, _KERNELS = "fedpart.layers.lanes_kernels", "fedpart.layers.sparse_kernels"
_INSTRUCTIONS = {torch.float32: "avx512f", torch.bfloat16: "avx512bf16"}
_NUMBERS = 256  # that a row of the kernel may cover: their sums fit into registers


def computes(kind: torch.dtype, channels: int, size: int) -> bool:
    """Whether this processor's vectors, and numba, can compute :func:`pooled` so, of such a kernel."""
    return _Row(kind, channels, size).numbers <= _NUMBERS and _INSTRUCTIONS.get(kind) in _features()


def pooled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``relu(max_pool2d(conv2d(x, weight, bias), 2))`` with an odd kernel that keeps the images' size.

    Derivatives are summed in float32. Where something is not finite, those in the same row of the kernel's
    weights, or in pixels to the right, may be not a number either.

    Args:
        x: ``[N, channels, height, width]`` in channels-last layout, of even height and width, float32 or
            bfloat16; channels and kernel are such that :func:`computes`.
        weight: ``[filters, channels, k, k]``; bias: ``[filters]``.

    Returns:
        ``[N, filters, height / 2, width / 2]`` in the type of ``x``, channels-last; differentiable once.
    """
    found: Tensor = _Pooled.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return found


class _Row(NamedTuple):
    """Numbers side by side that a row of the kernel covers; of one channel, all rows of pixels are one."""

    kind: torch.dtype
    channels: int
    size: int

    @property
    def numbers(self) -> int:
        return self.size * (self.size if self.channels == 1 else self.channels)

    @property
    def halves(self) -> int:
        return int(self.kind == torch.bfloat16)

    @property
    def vectors(self) -> int:
        return -(-self.numbers // (16 << self.halves))

    @property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """For derivatives in the parameters, and in the images."""
        found: tuple[Kernel, Kernel] = load(_KERNELS).kernels(self.vectors, self.halves)
        return found

    def ordered(self, rows: Tensor) -> Tensor:
        """Numbers of whole vectors in the order of their sums, or sums in the order of the numbers."""
        if not self.halves:
            return rows
        order = torch.tensor(load(_LANES).ORDER).argsort()
        return rows.reshape(*rows.shape[:-1], -1, len(order))[..., order].flatten(-2)


@cache
def _features() -> set[str]:
    lanes = load(_LANES)
    return set() if lanes is None else lanes.features()


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        found = F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)
        out, where = pool(found.contiguous(memory_format=torch.channels_last))
        ctx.save_for_backward(x, weight, where)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return _derivatives(ctx, gradient, *ctx.saved_tensors)


@torch.autograd.function.once_differentiable  # that it depends on the weights, too, is an error to ask for
def _derivatives(
    ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, where: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    gradient = gradient.permute(0, 2, 3, 1).contiguous()
    images = _of_images(gradient, where, x.shape, weight) if ctx.needs_input_grad[0] else None
    if not any(ctx.needs_input_grad[1:]):
        return images, None, None
    return images, *_of_parameters(gradient, where, x, weight.shape)


def _of_images(gradient: Tensor, where: Tensor, shape: torch.Size, weight: Tensor) -> Tensor:
    n, channels, height, width = shape
    row = _Row(gradient.dtype, channels, weight.shape[-1])
    out = torch.empty(n, height, width, channels, dtype=gradient.dtype)
    rows = weight.transpose(2, 3) if channels == 1 else weight.permute(2, 0, 3, 1)
    rows = rows.reshape(-1, len(weight), row.numbers).to(gradient.dtype)
    rows = F.pad(rows, (0, row.vectors * (16 << row.halves) - row.numbers))
    _, kernel = row.kernels
    kernel(
        bits_of(gradient).reshape(where.shape), where.numpy(), height, width, row.size,
        bits_of(row.ordered(rows)), bits_of(out).reshape(n * height, -1),
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


def _of_parameters(gradient: Tensor, where: Tensor, x: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    n, channels, height, width = x.shape
    row, filters = _Row(x.dtype, channels, shape[-1]), shape[0]
    rows = torch.zeros(1 if channels == 1 else row.size, filters, row.vectors * (16 << row.halves))
    bias = torch.zeros(filters)
    kernel, _ = row.kernels
    kernel(
        bits_of(gradient).reshape(where.shape), where.numpy(),
        bits_of(x.permute(0, 2, 3, 1).contiguous()).reshape(n * height, -1), height, width, row.size,
        rows.numpy(), bias.numpy(),
    )  # fmt: skip
    rows = row.ordered(rows)[..., : row.numbers]
    if channels == 1:
        return rows.reshape(filters, 1, row.size, row.size).transpose(2, 3), bias
    return rows.reshape(row.size, filters, row.size, channels).permute(1, 3, 0, 2), bias
