"""A pooled convolution whose derivatives are computed where pooling has kept a pixel, and nowhere else.

Of four pixels pooling keeps one, in every channel another, and ReLU keeps those that are positive. So three
of four numbers of the convolution's gradient are zero, or more, which a product of matrices cannot make use
of. Where few channels lie side by side, each of the others is one row of numbers times one factor.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.compiled import Kernel, load
from fedpart.layers.pooling import bits_of, pool

_ABREAST, _KERNELS = "fedpart.layers.abreast_kernels", "fedpart.layers.sparse_kernels"
_VECTORS = "fedpart.layers.lanes_kernels"
_LANES = 16
_INSTRUCTIONS = {torch.float32: "avx512f", torch.bfloat16: "avx512bf16"}
_NUMBERS = 256  # that a row of the kernel may cover: their sums fit into registers


def computes(kind: torch.dtype, channels: int, size: int) -> bool:
    """Whether this processor's vectors, and numba, can compute in that type, with such a kernel."""
    return _Row(kind, channels, size).numbers <= _NUMBERS and _INSTRUCTIONS.get(kind) in _features()


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """See :class:`~fedpart.layers.pooled_convolution.Pooled`; the result is rounded once.

    What is not finite makes the pixel to its left not a number, too, as far as a pair of bfloat16 reaches.
    """
    n, channels, height, width = x.shape
    filters, size = weight.shape[0], weight.shape[-1]
    if n % -_LANES * -2 > n:  # more than a third of the lanes would be idle
        found = F.conv2d(x, weight.to(x.dtype), bias.to(x.dtype), padding=size // 2)
        return pool(found.contiguous(memory_format=torch.channels_last))
    kernels = load(_ABREAST)
    many, pair = kernels.together(filters), 4 // x.itemsize
    begins = torch.arange(0, filters, many).clamp(max=filters - many)
    rows = weight.permute(2, 3, 1, 0).reshape(size, -1, filters)[..., begins[:, None] + torch.arange(many)]
    rows = F.pad(rows.to(x.dtype).permute(2, 0, 3, 1), (0, -size * channels % pair))
    words = rows.view(len(begins), size, many, -1, pair).transpose(2, 3).contiguous().view(torch.int32)
    out = torch.empty(n, height // 2, width // 2, filters, dtype=x.dtype)
    where = torch.empty(n * height // 2, width // 2 * filters, dtype=torch.uint8)
    kernels.kernel(many, pair - 1)(
        bits_of(x.permute(0, 2, 3, 1)).reshape(n * height, -1), height, width, words.squeeze(-1).numpy(),
        begins.numpy(), bias.float().numpy(), bits_of(out).reshape(where.shape), where.numpy(),
    )  # fmt: skip
    return out.permute(0, 3, 1, 2), where


def of_images(gradient: Tensor, where: Tensor, shape: torch.Size, weight: Tensor) -> Tensor:
    """The derivative in images of that ``shape``.

    What is not finite makes pixels to the right not a number, too, as far as whole vectors reach.
    """
    n, channels, height, width = shape
    row = _Row(gradient.dtype, channels, weight.shape[-1])
    out = torch.empty(n, height, width, channels, dtype=gradient.dtype)
    rows = weight.transpose(2, 3) if channels == 1 else weight.permute(2, 0, 3, 1)
    rows = rows.reshape(-1, len(weight), row.numbers).to(gradient.dtype)
    rows = row.ordered(F.pad(rows, (0, row.room - row.numbers)))
    _, kernel = row.kernels
    kernel(
        bits_of(gradient).reshape(where.shape), where.numpy(), height, width, row.size,
        bits_of(rows.contiguous()), bits_of(out).reshape(n * height, -1),
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


def of_parameters(gradient: Tensor, where: Tensor, x: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Derivatives in weights of that ``shape`` and in the bias, not rounded.

    What is not finite in images makes fewer of them not a number than in a sum over all pixels.
    """
    n, channels, height, width = x.shape
    row, filters = _Row(x.dtype, channels, shape[-1]), shape[0]
    rows = torch.zeros(1 if channels == 1 else row.size, filters, row.room)
    bias = torch.zeros(filters)
    kernel, _ = row.kernels
    kernel(
        bits_of(gradient).reshape(where.shape), where.numpy(),
        bits_of(x.permute(0, 2, 3, 1)).reshape(n * height, -1), height, width, row.size,
        rows.numpy(), bias.numpy(),
    )  # fmt: skip
    rows = row.ordered(rows)[..., : row.numbers]
    if channels == 1:
        return rows.reshape(filters, 1, row.size, row.size).transpose(2, 3), bias
    return rows.reshape(row.size, filters, row.size, channels).permute(1, 3, 0, 2), bias


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
    def room(self) -> int:
        """Numbers of whole vectors."""
        return self.vectors * (16 << self.halves)

    @property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """For derivatives in the parameters, and in the images."""
        found: tuple[Kernel, Kernel] = load(_KERNELS).kernels(self.vectors, self.halves)
        return found

    def ordered(self, rows: Tensor) -> Tensor:
        """Numbers of whole vectors in the order of their sums, or sums in the order of the numbers."""
        if not self.halves:
            return rows
        order = torch.tensor(load(_VECTORS).ORDER).argsort()
        return rows.reshape(*rows.shape[:-1], -1, len(order))[..., order].flatten(-2)


@cache
def _features() -> set[str]:
    lanes = load(_VECTORS)
    return set() if lanes is None else lanes.features()
