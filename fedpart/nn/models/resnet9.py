"""A small residual network for CIFAR-sized images, with learned dropout inside its residual blocks."""

from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn

from fedpart.checks import require
from fedpart.nn.hyperparameters import ConcreteDropout
from fedpart.nn.layers import MaxPoolReLU
from fedpart.nn.models.base import MODELS


class Scaled(nn.Module):
    """Multiplies by the constant ``factor``."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

    def extra_repr(self) -> str:
        return f"{self.factor}"


class Residual(nn.Module):
    """``x + block(x)``, for a block that keeps the shape of its input."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)  # type: ignore[no-any-return]


@MODELS.register("resnet9")
def resnet9(
    num_classes: int = 10, input_shape: tuple[int, int, int] = (3, 32, 32), dropout: float | None = 0.1,
    temperature: float = 0.1, width: int = 64, groups: int = 32,
    dropout_in: Literal["residual", "stage"] = "residual", logit_scale: float = 0.125, bias: bool = False,
) -> nn.Sequential:  # fmt: skip
    """ResNet-9 (the DAWNBench network of Page 2018) with GroupNorm in place of BatchNorm.

    Eight 3x3 convolutions of 1, 2, 2, 2, 4, 8, 8 and 8 times ``width`` channels, with GroupNorm and ReLU:
    three stages halve the image, the first and the last end in a residual block of two convolutions; then a
    maximum over what is left of the image, a linear layer, and Page's factor of 1/8, which keeps the logits
    small while the weights are far from settled. It has 6,573,130 parameters for ten classes, and 6,575,370
    with ``bias``: as many as the "ResNet-9" of public notebooks, whose ``logit_scale`` is 1.

    Args:
        input_shape: (channels, height, width) of at least 8x8.
        dropout: initial drop rate of every learned dropout layer; None for none.
        width: channels of the first convolution.
        groups: of every GroupNorm; must divide ``width``.
        dropout_in: what "the middle layer of each block" (App. J.2) is: ``residual``: between the two
            convolutions of both residual blocks; ``stage``: in each of the three stages, after its pooling.
        logit_scale: what the linear layer's outputs are multiplied by.
        bias: whether convolutions have one, before their norm.
    """
    depth, height, image_width = input_shape
    if height < 8 or image_width < 8:
        raise ValueError(
            f"This network pools three times and needs images of at least 8x8, got {height}x{image_width}."
        )
    if groups < 1 or width % groups:
        raise ValueError(f"groups must divide width, got {groups} and {width}.")
    require(dropout_in in ("residual", "stage"), f"dropout_in is residual or stage, got {dropout_in!r}.")

    def dropout_layer(place: str) -> OrderedDict[str, nn.Module]:
        if dropout is None or place != dropout_in:
            return OrderedDict()
        return OrderedDict(dropout=ConcreteDropout(dropout, temperature))

    def convolution(inputs: int, outputs: int, pool: bool = False) -> OrderedDict[str, nn.Module]:
        return OrderedDict(
            conv=nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias),
            norm=nn.GroupNorm(groups, outputs),
            **({"pool": MaxPoolReLU(), **dropout_layer("stage")} if pool else {"relu": nn.ReLU()}),
        )

    def residual(channels: int) -> Residual:
        first, second = (nn.Sequential(convolution(channels, channels)) for _ in range(2))
        return Residual(nn.Sequential(OrderedDict(first=first, **dropout_layer("residual"), second=second)))

    return nn.Sequential(
        OrderedDict(
            prep=nn.Sequential(convolution(depth, width)),
            stage1=nn.Sequential(convolution(width, 2 * width, pool=True)),
            residual1=residual(2 * width),
            stage2=nn.Sequential(convolution(2 * width, 4 * width, pool=True)),
            stage3=nn.Sequential(convolution(4 * width, 8 * width, pool=True)),
            residual3=residual(8 * width),
            pool=nn.AdaptiveMaxPool2d(1),
            flatten=nn.Flatten(),
            classes=nn.Linear(8 * width, num_classes),
            scale=Scaled(logit_scale),
        )
    )
