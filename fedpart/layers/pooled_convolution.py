"""A convolution whose result is pooled by 2 x 2 and rectified."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedpart.kernels.convolution import tiled as tiled_convolution
from fedpart.kernels.convolution import vectors as vector_convolution
from fedpart.layers.pooling import max_pool_relu

_LARGE = 2**24  # numbers of an image with room around it: of more, kernels could not tell places by 32 bits


class PooledConv2d(nn.Conv2d):
    """``relu(max_pool2d(conv2d(x), 2))`` with an odd kernel that keeps the images' size.

    All at once where a processor's kernels can: for images in channels-last layout, of even height and width,
    on one thread (vectors compute a few images in two steps, but backward). See
    :mod:`.tiled` and :mod:`.vectors`, of which the former
    comes first.

    Args:
        in_channels, out_channels: of the convolution.
        kernel_size: odd, of both sides.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x: Tensor) -> Tensor:
        """``x [N, in_channels, height, width]``; ``[N, out_channels, height // 2, width // 2]``."""
        weight, bias = self.weight, self.bias
        assert bias is not None
        kind = _precision(x, weight, bias)
        if kind is not None and _fits(x, weight, bias):
            _, channels, size, _ = weight.shape
            for way in (tiled_convolution, vector_convolution):
                if way.computes(kind, channels, size):
                    found: Tensor = Pooled.apply(x.to(kind), weight, bias, way)  # type: ignore[no-untyped-call]
                    return found
        return max_pool_relu(super().forward(x))


def _fits(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether images are as kernels expect them; what a convolution refuses is not."""
    if x.device.type != "cpu" or torch.get_num_threads() > 1 or x.ndim != 4 or not x.numel():
        return False
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, (x, weight, bias))):
        return False
    channels, high, across = weight.shape[1:]  # maybe of a narrower network than that of the layer
    if bias.shape != weight.shape[:1] or channels * (x.shape[2] + high) * (x.shape[3] + across) > _LARGE:
        return False
    if x.shape[1] != channels or x.stride(1) != 1 or x.shape[2] % 2 or x.shape[3] % 2:
        return False
    return high == across and high % 2 == 1


class Pooled(torch.autograd.Function):
    """``relu(max_pool2d(conv2d(x, weight, bias), 2))`` in a way of its own; differentiable once.

    Products are summed in float32.

    Args:
        x: ``[N, channels, height, width]``, channels-last, of even height and width.
        weight: ``[filters, channels, k, k]``, k odd; bias: ``[filters]``.
        way: a module with ``forward``, ``of_images`` and ``of_parameters``, which :meth:`forward` and
            :meth:`backward` call; its ``computes`` says of what.

    Returns:
        ``[N, filters, height / 2, width / 2]`` in the type of ``x``, channels-last.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, way: Any) -> Tensor:
        x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        out, where = way.forward(x, weight, bias)
        ctx.save_for_backward(x, weight, where)
        ctx.way = way
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        return _derivatives(ctx, gradient, *ctx.saved_tensors)


@torch.autograd.function.once_differentiable  # that it depends on the weights, too, is an error to ask for
def _derivatives(
    ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, where: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    gradient = gradient.permute(0, 2, 3, 1).contiguous()
    images = ctx.way.of_images(gradient, where, x.shape, weight) if ctx.needs_input_grad[0] else None
    if not any(ctx.needs_input_grad[1:]):
        return images, None, None, None
    return images, *ctx.way.of_parameters(gradient, where, x, weight.shape), None


def _precision(*factors: Tensor) -> torch.dtype | None:
    """In which a convolution computes, as far as kernels may: bfloat16 or float32."""
    types = {factor.dtype for factor in factors}
    if torch.is_autocast_enabled("cpu"):
        cast = torch.get_autocast_dtype("cpu")
        return cast if cast == torch.bfloat16 and types <= {torch.bfloat16, torch.float32} else None
    (kind, *others) = types
    return None if others else kind
