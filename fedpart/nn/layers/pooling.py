"""Max-pooling by 2 x 2 and ReLU in one pass over memory, where there is a kernel; by torch elsewhere."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpart.kernels import pooled_convolution_kernel, pooling_kernel


class MaxPoolReLU(nn.Module):
    """The layer of :func:`max_pool_relu`."""

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[N, channels, height, width]``; ``[N, channels, height // 2, width // 2]``."""
        return max_pool_relu(x)


def max_pool_relu(x: Tensor) -> Tensor:
    """``relu(max_pool2d(x, 2))`` of ``x [N, channels, height, width]``, and its derivative, to the bit."""
    if (kernel := pooling_kernel(x)) is None:
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


class PooledConv2d(nn.Conv2d):
    """``relu(max_pool2d(conv2d(x), 2))`` with an odd kernel that keeps the images' size: all at once where
    :func:`.pooled_convolution_kernel` has a kernel for it."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x: Tensor) -> Tensor:
        """``x [N, in_channels, height, width]``; ``[N, out_channels, height // 2, width // 2]``."""
        weight, bias = self.weight, self.bias
        assert bias is not None
        kind = _precision(x, weight, bias)
        kernel = pooled_convolution_kernel(kind, x, weight, bias) if kind is not None else None
        if kernel is None:
            return max_pool_relu(super().forward(x))
        pooled: Tensor = _Pooled.apply(x.to(kind), weight, bias, kernel)
        return pooled


class _Pooled(torch.autograd.Function):
    """What a kernel computes; differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, kernel: Any) -> Tensor:
        x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        out, where = kernel.forward(x, weight, bias)
        ctx.save_for_backward(x, weight, where)
        ctx.kernel = kernel
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return _derivatives(ctx, gradient, *ctx.saved_tensors)


@torch.autograd.function.once_differentiable  # that it depends on the weights, too, is an error to ask for
def _derivatives(ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, where: Tensor) -> tuple[Any, ...]:
    gradient = gradient.permute(0, 2, 3, 1).contiguous()
    images = ctx.kernel.of_images(gradient, where, x.shape, weight) if ctx.needs_input_grad[0] else None
    if not any(ctx.needs_input_grad[1:]):
        return images, None, None, None
    return images, *ctx.kernel.of_parameters(gradient, where, x, weight.shape), None


def _precision(*factors: Tensor) -> torch.dtype | None:
    """In which a convolution computes, as far as kernels may: bfloat16 or float32."""
    types = {factor.dtype for factor in factors}
    if torch.is_autocast_enabled("cpu"):
        cast = torch.get_autocast_dtype("cpu")
        return cast if cast == torch.bfloat16 and types <= {torch.bfloat16, torch.float32} else None
    (kind, *others) = types
    return None if others else kind
