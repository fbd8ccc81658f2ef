"""HeteroFL's network for MNIST, in any of its widths (Diao et al. 2021)."""

from math import ceil

from torch import nn

from fedpart.nn.layers.scaler import Scaler

_CHANNELS, _GROUP = (64, 128, 256, 512), 4


def heterofl_cnn(
    num_classes: int = 10,
    input_shape: tuple[int, int, int] = (1, 28, 28),
    width: float = 1.0,
    scaler: bool = True,
) -> nn.Sequential:
    """Four 3x3 convolutions with 64, 128, 256 and 512 channels, pooling between them, and a linear layer.

    At widths 1, 1/2, 1/4, 1/8 and 1/16 it has 1,556,874, 391,370, 98,922, 25,274 and 6,594 parameters for
    ten classes. Its norm is GroupNorm in groups of four channels, where the published one is BatchNorm: these
    groups are the same in a narrower network.

    Args:
        num_classes: K outputs.
        input_shape: (channels, height, width).
        width: share of the channels, rounded up; a multiple of four of each has to be left.
        scaler: whether convolutions are followed by a :class:`.Scaler`, as published.
    """
    channels, layers = input_shape[0], list[nn.Module]()
    for index, full in enumerate(_CHANNELS):
        here = ceil(width * full)
        if not 0 < width <= 1 or here % _GROUP:
            raise ValueError(
                f"The width {width:g} leaves {here} of {full} channels; use a share of at most 1 that leaves "
                f"a multiple of {_GROUP}, such as 0.5 or 0.0625."
            )
        if index:
            layers.append(nn.MaxPool2d(2))
        layers += [nn.Conv2d(channels, here, 3, padding=1), *([Scaler(width)] if scaler else [])]
        layers += [nn.GroupNorm(here // _GROUP, here), nn.ReLU()]
        channels = here
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))
