"""A convolution whose result is pooled by 2 x 2 and rectified."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpart.layers.pooling import compiled, max_pool_relu, max_relu_of_blocks


class PooledConv2d(nn.Conv2d):
    """``relu(max_pool2d(conv2d(x), 2))`` with an odd kernel that keeps the images' size.

    From images of one channel in bfloat16 on a CPU, the four pixels of which pooling keeps one are computed
    as channels of one pixel: by a convolution between blocks of 2 x 2, four channels instead of one, whose
    kernel covers what those of the four cover together. One of 5 x 5 becomes one of 3 x 3 blocks, which is
    1.4 times the multiplications, in a shape that keeps the processor's matrix units busier.

    Args:
        in_channels, out_channels: of the convolution.
        kernel_size: odd, of both sides.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x: Tensor) -> Tensor:
        """``x [N, in_channels, height, width]``; ``[N, out_channels, height // 2, width // 2]``."""
        if not _has_blocks(x):
            return max_pool_relu(super().forward(x))
        assert self.bias is not None
        blocks = F.pixel_unshuffle(x, 2).contiguous(memory_format=torch.channels_last)
        weight = kernel_of_blocks(self.weight).contiguous(memory_format=torch.channels_last)
        found = F.conv2d(blocks, weight, self.bias.repeat(4), padding=weight.shape[-1] // 2)
        return max_relu_of_blocks(found)


def kernel_of_blocks(weight: Tensor) -> Tensor:
    """The kernel between blocks, ``[4 C, 4, b, b]``, for that between pixels, ``[C, 1, k, k]``; k, b are odd.

    The channels that go in are a block's pixels row by row, as ``F.pixel_unshuffle`` has them; those that
    come out are all C of a block's first pixel, then of the second and so on.
    """
    reach = weight.shape[-1] // 2  # pixels beyond the one that is computed
    before = -reach % 2  # that make these whole blocks
    after = before + 1
    placed = [
        F.pad(weight, (before + right, after - right, before + down, after - down))
        for down in (0, 1)
        for right in (0, 1)
    ]
    return F.pixel_unshuffle(torch.cat(placed), 2)


def _has_blocks(x: Tensor) -> bool:
    """Whether ``x`` is convolved between blocks; its strides say whether it is channels-last."""
    if x.device.type != "cpu" or x.ndim != 4 or x.shape[1] != 1 or x.stride(1) != 1 or not len(x):
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    precision = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    return precision == torch.bfloat16 and x.shape[2] % 2 == 0 == x.shape[3] % 2 and compiled()
