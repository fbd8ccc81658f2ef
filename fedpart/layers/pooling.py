"""Max-pooling by 2 x 2 and ReLU in one pass over memory, where a compiled kernel can; by torch elsewhere.

Pooling reads more memory than it computes with. torch pools and rectifies in two passes forward and three
backward, and keeps eight bytes per output for where a maximum was; on a CPU that takes as long as the
convolutions do in bfloat16.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpart.kernels.door import Kernel, load

_INTEGERS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
_FEW = (
    32  # words: pixels of up to so many get kernels of their own, for those of others any loop is long enough
)


class MaxPoolReLU(nn.Module):
    """The layer of :func:`max_pool_relu`."""

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[N, channels, height, width]``; ``[N, channels, height // 2, width // 2]``."""
        return max_pool_relu(x)


def max_pool_relu(x: Tensor) -> Tensor:
    """``relu(max_pool2d(x, 2))`` of ``x [N, channels, height, width]``, and its derivative, to the bit.

    The compiled kernel (of numba, if that is installed) takes images in channels-last memory format, of even
    height and width, in bfloat16 or float32, on a CPU.
    """
    even = x.ndim == 4 and x.shape[2] % 2 == 0 == x.shape[3] % 2
    if not even or not _fits(x):
        return F.relu(F.max_pool2d(x, 2))
    pooled: Tensor = _Pool.apply(x)  # type: ignore[no-untyped-call]
    return pooled


def _fits(x: Tensor) -> bool:
    if x.device.type != "cpu" or x.ndim != 4 or x.dtype not in _INTEGERS or x.numel() == 0:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return x.is_contiguous(memory_format=torch.channels_last) and _kernels() is not None


def _kernels() -> Any:
    return load("fedpart.kernels.convolution.pooling")


class _Layout(NamedTuple):
    """How images lie in memory: ``rows`` of the result, words of a type, so many ``words`` of a pixel."""

    rows: int
    word: torch.dtype
    words: int

    @property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """To pool, and to send gradients back."""
        found: tuple[Kernel, Kernel] = _kernels().kernels(self.words if self.words <= _FEW else 0)
        return found


def pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """What :func:`max_pool_relu` makes of images that its kernel takes, without a derivative.

    Returns:
        ``[N, channels, height // 2, width // 2]``, channels-last; for each number of it, in the order of
        memory, the place of the first maximum among its four, row by row, or ``NOWHERE`` if it is not
        positive: uint8, ``[N * (height // 2), width // 2 * channels]``.
    """
    n, channels, height, width = x.shape
    layout = _layout(x)
    out = torch.empty((n, height // 2, width // 2, channels), dtype=x.dtype)
    where = torch.empty((layout.rows, out.numel() // layout.rows), dtype=torch.uint8)
    kernel, _ = layout.kernels
    kernel(
        _words(x, layout), layout.words, bits_of(out).reshape(where.shape), where.numpy(), *_bounds(x.dtype)
    )
    return out.permute(0, 3, 1, 2), where


def bits_of(x: Tensor) -> Any:
    """The bits of ``x``, as numpy's integers: those of positive numbers are ordered as the numbers are."""
    return x.detach().view(_INTEGERS[x.dtype]).numpy()


def _layout(x: Tensor) -> _Layout:
    in_pairs = x.itemsize == 2 and x.shape[1] % 2 == 0
    word, words = (torch.int32, x.shape[1] // 2) if in_pairs else (_INTEGERS[x.dtype], x.shape[1])
    return _Layout(len(x) * (x.shape[2] // 2), word, words)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out, where = pool(x)
        ctx.save_for_backward(where)
        ctx.shape, ctx.layout = x.shape, _layout(x)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (where,) = ctx.saved_tensors
        bits = bits_of(gradient.permute(0, 2, 3, 1).contiguous()).reshape(where.shape)
        out = torch.empty(ctx.shape, dtype=gradient.dtype, memory_format=torch.channels_last)
        _, send_back = ctx.layout.kernels
        send_back(bits, where.numpy(), ctx.layout.words, _words(out, ctx.layout))
        return out


def _words(x: Tensor, layout: _Layout) -> Any:
    """The memory of images in words, ``[rows, 4 * width * words]``."""
    return x.detach().permute(0, 2, 3, 1).reshape(layout.rows, -1).view(layout.word).numpy()


@cache
def _bounds(dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """All bits but the sign; the bits of infinity and of minus infinity: more than these are not a number."""
    integer = _INTEGERS[dtype]
    infinity, lowest = torch.tensor([torch.inf, -torch.inf], dtype=dtype).view(integer).numpy()
    return infinity.dtype.type(torch.iinfo(integer).max), infinity, lowest
