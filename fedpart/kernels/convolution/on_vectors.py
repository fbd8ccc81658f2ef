"""A pooled convolution on vectors, whose derivatives are computed where pooling has kept a pixel.

Forward, sixteen images are computed abreast, one in each lane. Backward, three of four numbers of the
convolution's gradient are zero, or more, since of four pixels pooling keeps one, in every channel another,
and ReLU those that are positive. A product of matrices cannot make use of that. Where few channels lie side
by side, each of the others is one row of numbers times one factor.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.kernels.convolution import abreast, sparse
from fedpart.kernels.convolution.code import LANES, features
from fedpart.kernels.convolution.products import ORDER
from fedpart.kernels.pooling import Pooling, bits_of

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
    """The result, rounded once, and where its numbers come from; sums are in float32.

    What is not finite makes the pixel to its left not a number, too, as far as a pair of bfloat16 reaches,
    and an infinite weight those at the border.

    Args:
        x: ``[N, channels, height, width]``, channels-last.
        weight: ``[filters, channels, k, k]``; bias: ``[filters]``.

    Returns:
        ``[N, filters, height / 2, width / 2]`` in the type of ``x``, channels-last; uint8,
        ``[N * height / 2, width / 2 * filters]``.
    """
    n, channels, height, width = x.shape
    filters, size = weight.shape[0], weight.shape[-1]
    idle = -n % LANES
    if 2 * idle > n:  # more than a third of all lanes
        found = F.conv2d(x, weight.to(x.dtype), bias.to(x.dtype), padding=size // 2)
        found = found.contiguous(memory_format=torch.channels_last)
        return Pooling.of(found).pool(found)
    many, pair = abreast.filters_at_once(filters), 4 // x.itemsize
    begins, members = _blocks(filters, many)
    rows = weight.permute(2, 3, 1, 0).reshape(size, -1, filters)[..., members]
    rows = rows.to(x.dtype).permute(2, 0, 3, 1)  # [blocks, size, many, size * channels]
    rows = _padded(rows, -size * channels % pair)
    words = rows.view(len(begins), size, many, -1, pair).transpose(2, 3).contiguous().view(torch.int32)
    out = torch.empty(n, height // 2, width // 2, filters, dtype=x.dtype)
    where = torch.empty(n * height // 2, width // 2 * filters, dtype=torch.uint8)
    abreast.convolve_and_pool(many, pair - 1)(
        bits_of(x.permute(0, 2, 3, 1)).reshape(n * height, -1), height, width, words.squeeze(-1).numpy(),
        begins.numpy(), bias.float().contiguous().numpy(), bits_of(out).reshape(where.shape), where.numpy(),
    )  # fmt: skip
    return out.permute(0, 3, 1, 2), where


def of_images(gradient: Tensor, where: Tensor, shape: torch.Size, weight: Tensor) -> Tensor:
    """The derivative in images of that ``shape``, channels-last.

    Args:
        gradient: of the result, ``[N, height / 2, width / 2, filters]``, contiguous.
        where: which ``forward`` has returned.
    """
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

    What is not finite in images makes fewer of them not a number than in a sum over all pixels.
    """
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
    """Of those whose sums fit into registers the one that loads least; None if there is none.

    Args:
        kind, channels, size: of the convolution.
        whole: of those only in which every pixel begins with a vector.
    """
    halves = int(kind == torch.bfloat16)
    lanes = LANES << halves
    layouts = (
        _Layout(channels, size, stacked, depth, halves)
        for stacked in range(1, size + 1)
        for depth in (stacked * channels, -(-stacked * channels // lanes) * lanes)
    )
    fitting = (one for one in layouts if one.vectors << halves <= _SUMS and (one.whole or not whole))
    return min(fitting, key=lambda layout: layout.loads, default=None)
