"""Max-pooling by 2 x 2 and ReLU in one pass over memory, where a compiled kernel can; by torch elsewhere.

Pooling reads more memory than it computes with. torch pools and rectifies in two passes forward and three
backward, and keeps eight bytes per output for where a maximum was; on a CPU that takes as long as the
convolutions do in bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpart.compiled import Kernel, load

_INTEGERS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}


class MaxPoolReLU(nn.Module):
    """``relu(max_pool2d(x, 2))`` of ``x [N, channels, height, width]``, and its derivative, to the bit.

    The compiled kernel (of numba, if that is installed) takes images in channels-last memory format, of even
    height and width, in bfloat16 or float32, on a CPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[N, channels, height, width]``; ``[N, channels, height // 2, width // 2]``."""
        kernels = load("fedpart.layers.pooling_kernels") if _fits(x) else None
        if kernels is not None:
            pooled: Tensor = _Pool.apply(x, kernels.pool, kernels.send_back)  # type: ignore[no-untyped-call]
            return pooled
        return F.relu(F.max_pool2d(x, 2))


def _fits(x: Tensor) -> bool:
    if x.device.type != "cpu" or x.ndim != 4 or x.dtype not in _INTEGERS:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    even = x.shape[2] % 2 == 0 == x.shape[3] % 2
    return even and x.numel() > 0 and x.is_contiguous(memory_format=torch.channels_last)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Kernel, backward: Kernel) -> Tensor:
        n, channels, height, width = x.shape
        out = torch.empty((n, height // 2, width // 2, channels), dtype=x.dtype)
        where = torch.empty(out.shape, dtype=torch.uint8)
        forward(_integers(x.permute(0, 2, 3, 1)), _integers(out), where.numpy(), *_bounds(x.dtype))
        ctx.save_for_backward(where)
        ctx.kernel = backward
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (where,) = ctx.saved_tensors
        n, height, width, channels = where.shape
        gradient = gradient.permute(0, 2, 3, 1).contiguous()
        out = torch.empty((n, 2 * height, 2 * width, channels), dtype=gradient.dtype)
        ctx.kernel(_integers(gradient), where.numpy(), _integers(out))
        return out.permute(0, 3, 1, 2), None, None


def _integers(x: Tensor) -> Any:
    """The bits of ``x``, as numpy's integers: those of positive numbers are ordered as the numbers are."""
    return x.detach().view(_INTEGERS[x.dtype]).numpy()


def _bounds(dtype: torch.dtype) -> tuple[Any, Any]:
    """All bits but the sign, and the bits of infinity: more than these are not a number."""
    integer = torch.iinfo(_INTEGERS[dtype])
    infinity = torch.tensor(torch.inf, dtype=dtype).view(_INTEGERS[dtype])
    return torch.tensor(integer.max, dtype=_INTEGERS[dtype]).numpy()[()], infinity.numpy()[()]
