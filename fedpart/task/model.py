"""What a loss runs: the input transforms, and the network behind them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from fedpart.randomness.noise import Noise


class Model(nn.Module):
    """Transforms, then the user's module: one tree, so that one substitution reaches w and psi."""

    def __init__(self, transforms: Mapping[str, nn.Module], module: nn.Module) -> None:
        super().__init__()
        self.transforms = nn.ModuleDict(transforms)
        self.module = module

    def forward(
        self, x: Tensor, samples: int, share: Noise | None, bf16: bool, channels_last: bool
    ) -> Tensor:
        if samples > 1:
            x = x.repeat_interleave(samples, 0)
        for transform in self.transforms.values():
            x = transform(x)
        if channels_last:
            x = with_channels_last(x)
        # Only the network runs in low precision: coordinates of an image do not fit into bfloat16.
        cast = torch.autocast(x.device.type, torch.bfloat16) if bf16 else nullcontext()
        with cast, share.repeated(samples, len(x)) if share is not None else nullcontext():
            return self.module(x)  # type: ignore[no-any-return]


def with_channels_last(value: Tensor) -> Tensor:
    """Images, and the weights of their convolutions, with channels next to each other in memory."""
    if value.ndim != 4:
        return value
    if value.shape[1] == 1:  # the strides of a single channel say nothing, unless they are set
        return value.reshape(-1).contiguous().view(len(value), *value.shape[2:], 1).movedim(-1, 1)
    return value.contiguous(memory_format=torch.channels_last)
