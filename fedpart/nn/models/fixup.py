"""Fixup residual networks (Zhang, Dauphin and Ma 2019): scalar scales and biases in place of norms."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpart.checks import require
from fedpart.nn.models.base import MODELS


class ScalarBias(nn.Module):
    """Adds one learned number, 0 at first, to everything."""

    stacked_parameters: ClassVar[Mapping[str, str]] = {"bias": "sum"}

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class FixupBlock(nn.Module):
    """``relu(scale * conv2(relu(conv1(x + b1a) + b1b) + b2a) + b2b + skip)``, both convolutions 3x3. Where
    the block halves the image (``stride`` 2) the skip is every second pixel of ``x + b1a`` (App. I.3), and 0
    in the channels that ``x`` has not. The first convolution starts as He's, times L^(-1/2) for L ``blocks``,
    the second at 0."""

    stacked_parameters: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("bias1a", "bias1b", "bias2a", "bias2b"), "sum"),
        "scale": "product",
    }

    def __init__(self, inputs: int, outputs: int, stride: int, blocks: int) -> None:
        super().__init__()
        self.bias1a = nn.Parameter(torch.zeros(1))
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bias1b = nn.Parameter(torch.zeros(1))
        self.bias2a = nn.Parameter(torch.zeros(1))
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.scale = nn.Parameter(torch.ones(1))
        self.bias2b = nn.Parameter(torch.zeros(1))
        self.stride, self.added = stride, outputs - inputs
        nn.init.normal_(self.conv1.weight, std=(2 / (9 * outputs * blocks)) ** 0.5)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """``x [N, inputs, height, width]``; ``[N, outputs, height / stride, width / stride]``, rounded up."""
        shifted = x + self.bias1a
        skip = x
        if self.stride > 1 or self.added:
            skip = functional.pad(shifted[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        inner = (self.conv1(shifted) + self.bias1b).relu() + self.bias2a
        return (self.scale * self.conv2(inner) + self.bias2b + skip).relu()  # type: ignore[no-any-return]


@MODELS.register("fixup_resnet")
def fixup_resnet(
    num_classes: int = 10, input_shape: tuple[int, int, int] = (3, 32, 32), depth: int = 8, width: int = 16
) -> nn.Sequential:
    """A Fixup ResNet for images of CIFAR's size (App. I.3): Fixup-8 and Fixup-14 of the paper's Table 1.

    A convolution, three stages of ``(depth - 2) / 6`` blocks with 1, 2 and 4 times ``width`` channels, a mean
    over the image, a linear layer. The second and the third stage halve the image. For ten classes it has
    74,827 parameters at depth 8 and 171,610 at 14; 17 and 32 of them are scalars.

    With partitions each scalar exists C times: scales are multiplied, biases added (App. I.2). The linear
    layer's own bias is no scalar and is divided among the partitions as its weight is; the paper does not
    say. Its defaults must be the initial values: with zeros there is no scale (App. D.2).

    Args:
        depth: 6 n + 2.
        width: channels of the first stage.
    """
    per_stage, left = divmod(depth - 2, 6)
    if left or per_stage < 1:
        raise ValueError(f"The depth of a Fixup ResNet is 6 n + 2, as 8, 14 or 20, got {depth}.")
    require(width >= 1, f"The width is the channels of the first stage, 1 or more, got {width}.")
    channels, layers = width, OrderedDict[str, nn.Module]()
    layers["stem"] = nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False)
    layers["bias1"], layers["relu"] = ScalarBias(), nn.ReLU()
    for stage in range(3):
        outputs, inner = width * 2**stage, list[nn.Module]()
        for block in range(per_stage):
            inner.append(FixupBlock(channels, outputs, 2 if stage and not block else 1, 3 * per_stage))
            channels = outputs
        layers[f"stage{stage + 1}"] = nn.Sequential(*inner)
    layers["pool"], layers["flatten"] = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    layers["bias2"], layers["classes"] = ScalarBias(), nn.Linear(channels, num_classes)
    network = nn.Sequential(layers)
    nn.init.zeros_(network.classes.weight)  # type: ignore[arg-type,union-attr]
    nn.init.zeros_(network.classes.bias)  # type: ignore[arg-type,union-attr]
    return network
