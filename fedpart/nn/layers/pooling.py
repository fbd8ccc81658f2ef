"""Max-pooling by 2 x 2 and ReLU in one pass over memory, where there is a kernel; by torch elsewhere.

Pooling reads more memory than it computes with. torch pools and rectifies in two passes forward and three
backward, and keeps eight bytes per output for where a maximum was; on a CPU that takes as long as the
convolutions do in bfloat16.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpart.kernels import pooling_kernel


class MaxPoolReLU(nn.Module):
    """The layer of :func:`max_pool_relu`."""

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[N, channels, height, width]``; ``[N, channels, height // 2, width // 2]``."""
        return max_pool_relu(x)


def max_pool_relu(x: Tensor) -> Tensor:
    """``relu(max_pool2d(x, 2))`` of ``x [N, channels, height, width]``, and its derivative, to the bit.

    See :func:`.pooling_kernel` for when a kernel computes it.
    """
    kernel = pooling_kernel(x)
    if kernel is None:
        return F.relu(F.max_pool2d(x, 2))
    pooled: Tensor = _Pool.apply(x, kernel)
    return pooled


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Any) -> Tensor:
        out, where = kernel.pool(x)
        ctx.save_for_backward(where)
        ctx.kernel = kernel
        return out  # type: ignore[no-any-return]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.kernel.send_back(gradient, *ctx.saved_tensors), None
