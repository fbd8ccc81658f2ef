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

from fedpart.compiled import Kernel, load

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
    return _pooled(x) if even and _fits(x) else F.relu(F.max_pool2d(x, 2))


def _fits(x: Tensor) -> bool:
    if x.device.type != "cpu" or x.ndim != 4 or x.dtype not in _INTEGERS or x.numel() == 0:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return x.is_contiguous(memory_format=torch.channels_last) and _kernels() is not None


def _kernels() -> Any:
    return load("fedpart.layers.pooling_kernels")


class _Layout(NamedTuple):
    """How images lie in memory: ``rows`` of the result, words of a type, so many ``words`` of a pixel."""

    rows: int
    word: torch.dtype
    words: int


def _pooled(x: Tensor) -> Tensor:
    n, channels, height, width = x.shape[0], x.shape[1], x.shape[2] // 2, x.shape[3] // 2
    in_pairs = x.itemsize == 2 and channels % 2 == 0
    word, words = (torch.int32, channels // 2) if in_pairs else (_INTEGERS[x.dtype], channels)
    kernels = _kernels().kernels(words if words <= _FEW else 0)
    layout = _Layout(n * height, word, words)
    pooled: Tensor = _Pool.apply(x, (n, height, width, channels), layout, kernels)  # type: ignore[no-untyped-call]
    return pooled


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: tuple[int, ...], layout: _Layout, kernels: tuple[Kernel, Kernel]
    ) -> Tensor:
        pool, ctx.send_back = kernels
        out = torch.empty(shape, dtype=x.dtype)
        where = torch.empty((layout.rows, out.numel() // layout.rows), dtype=torch.uint8)
        words = _words(x, layout)
        pool(words, layout.words, _integers(out).reshape(where.shape), where.numpy(), *_bounds(x.dtype))
        ctx.save_for_backward(where)
        ctx.shape, ctx.layout = x.shape, layout
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (where,) = ctx.saved_tensors
        bits = _integers(gradient.permute(0, 2, 3, 1).contiguous()).reshape(where.shape)
        out = torch.empty(ctx.shape, dtype=gradient.dtype, memory_format=torch.channels_last)
        ctx.send_back(bits, where.numpy(), ctx.layout.words, _words(out, ctx.layout))
        return out, None, None, None


def _integers(x: Tensor) -> Any:
    """The bits of ``x``, as numpy's integers: those of positive numbers are ordered as the numbers are."""
    return x.detach().view(_INTEGERS[x.dtype]).numpy()


def _words(x: Tensor, layout: _Layout) -> Any:
    """The memory of images in words, ``[rows, 4 * width * words]``."""
    return x.detach().permute(0, 2, 3, 1).reshape(layout.rows, -1).view(layout.word).numpy()


@cache
def _bounds(dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """All bits but the sign; the bits of infinity and of minus infinity: more than these are not a number."""
    integer = _INTEGERS[dtype]
    infinity, lowest = torch.tensor([torch.inf, -torch.inf], dtype=dtype).view(integer).numpy()
    return infinity.dtype.type(torch.iinfo(integer).max), infinity, lowest
