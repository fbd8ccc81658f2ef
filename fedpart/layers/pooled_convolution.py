"""A convolution whose result is pooled by 2 x 2 and rectified."""

from __future__ import annotations

from torch import Tensor, nn

from fedpart.layers import tiled_convolution
from fedpart.layers.pooling import max_pool_relu


class PooledConv2d(nn.Conv2d):
    """``relu(max_pool2d(conv2d(x), 2))`` with an odd kernel that keeps the images' size.

    In bfloat16, all at once where the processor can; see :mod:`fedpart.layers.tiled_convolution`.

    Args:
        in_channels, out_channels: of the convolution.
        kernel_size: odd, of both sides.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x: Tensor) -> Tensor:
        """``x [N, in_channels, height, width]``; ``[N, out_channels, height // 2, width // 2]``."""
        assert self.bias is not None
        if tiled_convolution.takes(x, self.weight, self.bias):
            return tiled_convolution.pooled(x, self.weight, self.bias)
        return max_pool_relu(super().forward(x))
