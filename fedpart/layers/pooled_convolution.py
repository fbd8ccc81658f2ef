"""A convolution whose result is pooled by 2 x 2 and rectified."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpart.layers import sparse_convolution, tiled_convolution
from fedpart.layers.pooling import max_pool_relu


class PooledConv2d(nn.Conv2d):
    """``relu(max_pool2d(conv2d(x), 2))`` with an odd kernel that keeps the images' size.

    All at once, or at least backward, where a processor's kernels can: for images in channels-last layout, of
    even height and width, on one thread. See :mod:`fedpart.layers.tiled_convolution` and
    :mod:`fedpart.layers.sparse_convolution`, of which the former comes first.

    Args:
        in_channels, out_channels: of the convolution.
        kernel_size: odd, of both sides.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x: Tensor) -> Tensor:
        """``x [N, in_channels, height, width]``; ``[N, out_channels, height // 2, width // 2]``."""
        assert self.bias is not None
        kind = _precision(x, self.weight, self.bias)
        if kind is not None and self._takes(x):
            for way in (tiled_convolution, sparse_convolution):
                if way.computes(kind, self.in_channels, self.kernel_size[0]):
                    found: Tensor = way.pooled(x.to(kind), self.weight, self.bias)
                    return found
        return max_pool_relu(super().forward(x))

    def _takes(self, x: Tensor) -> bool:
        """Whether images are as kernels expect them; what a convolution refuses is not."""
        if x.device.type != "cpu" or torch.get_num_threads() > 1 or x.ndim != 4 or not x.numel():
            return False
        if any(map(torch._C._functorch.is_functorch_wrapped_tensor, (x, *self.parameters()))):
            return False
        _, channels, height, width = x.shape
        return channels == self.in_channels and x.stride(1) == 1 and height % 2 == 0 == width % 2


def _precision(*factors: Tensor) -> torch.dtype | None:
    """In which a convolution computes, as far as kernels may: bfloat16 or float32."""
    types = {factor.dtype for factor in factors}
    if torch.is_autocast_enabled("cpu"):
        cast = torch.get_autocast_dtype("cpu")
        return cast if cast == torch.bfloat16 and types <= {torch.bfloat16, torch.float32} else None
    (kind, *others) = types
    return None if others else kind
