"""Small networks: convolutional ones for small images, and fully connected ones."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from fedpart.checks import require
from fedpart.nn.hyperparameters import ConcreteDropout
from fedpart.nn.layers import PooledConv2d
from fedpart.nn.models.base import MODELS
from fedpart.registry import nearest


class Scaler(nn.Module):
    """Divides by the width, a share of the full network's units, while it is trained."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return x / self.width if self.training and self.width < 1 else x

    def extra_repr(self) -> str:
        return f"width={self.width:g}"


def _cnn(
    channels: tuple[int, ...], hidden: tuple[int, ...], num_classes: int, input_shape: tuple[int, int, int],
    rate: float | None, temperature: float, share: float,
) -> nn.Sequential:  # fmt: skip
    """Twice conv 5x5 and pool, then fully connected layers; ReLU and dropout after each but the last."""
    depth, height, width = input_shape
    if height < 4 or width < 4:
        raise ValueError(f"This network pools twice and needs images of at least 4x4, got {height}x{width}.")
    require(0 < share <= 1, f"The width is a share of the units, above 0 and at most 1, got {share:g}.")
    channels, hidden = (tuple(math.ceil(share * units) for units in layer) for layer in (channels, hidden))
    layers: OrderedDict[str, nn.Module] = OrderedDict()

    def dropout(name: str) -> None:
        if rate is not None:
            layers[name] = ConcreteDropout(rate, temperature)

    for i, width_out in enumerate(channels, start=1):
        layers[f"conv{i}"] = PooledConv2d(depth, width_out, 5)
        dropout(f"dropout{i}")
        depth, height, width = width_out, height // 2, width // 2
    layers["flatten"] = nn.Flatten()
    features = depth * height * width
    for i, units in enumerate(hidden, start=1):
        layers[f"fc{i}"] = nn.Linear(features, units)
        layers[f"relu{i + 2}"] = nn.ReLU()
        dropout(f"dropout{i + 2}")
        features = units
    layers["classes"] = nn.Linear(features, num_classes)
    return nn.Sequential(layers)


@MODELS.register("mnist_cnn")
def mnist_cnn(
    num_classes: int = 10, input_shape: tuple[int, int, int] = (1, 28, 28), dropout: float | None = 0.1,
    temperature: float = 0.1, width: float = 1.0,
) -> nn.Sequential:  # fmt: skip
    """The paper's MNIST network (Schwobel et al. 2021): 20 and 50 channels, 500 and 50 units.

    It has 1,276,630 parameters for ten classes.

    Args:
        dropout: initial drop rate of the four learned dropout layers between layers; None for none.
        width: share of the channels and units, rounded up: 0.5 has 319,570 parameters, 0.25 has 83,296.
    """
    return _cnn((20, 50), (500, 50), num_classes, input_shape, dropout, temperature, width)


@MODELS.register("digits_cnn")
def digits_cnn(
    num_classes: int = 10, input_shape: tuple[int, int, int] = (1, 28, 28), dropout: float | None = 0.1,
    temperature: float = 0.1, width: float = 1.0,
) -> nn.Sequential:  # fmt: skip
    """A small relative of :func:`mnist_cnn` for the embedded digits: 8 and 16 channels, 64 units."""
    return _cnn((8, 16), (64,), num_classes, input_shape, dropout, temperature, width)


@MODELS.register("pfl_cnn")
def pfl_cnn(num_classes: int = 10, input_shape: tuple[int, int, int] = (3, 32, 32)) -> nn.Sequential:
    """Of pfl's CIFAR-10 benchmark: 1,626,442 parameters; ``learn_dropout`` learns its rates, .25 and .5."""
    depth, height, width = input_shape
    convolutions = nn.Conv2d(depth, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
    hidden = nn.Linear(64 * (height // 2 - 2) * (width // 2 - 2), 128), nn.ReLU(), nn.Dropout(0.5)
    return nn.Sequential(*convolutions, nn.Dropout(0.25), nn.Flatten(), *hidden, nn.Linear(128, num_classes))


_CHANNELS, _GROUP = (64, 128, 256, 512), 4


@MODELS.register("heterofl_cnn")
def heterofl_cnn(
    num_classes: int = 10, input_shape: tuple[int, int, int] = (1, 28, 28), width: float = 1.0,
    scaler: bool = True,
) -> nn.Sequential:  # fmt: skip
    """Four 3x3 convolutions with 64, 128, 256 and 512 channels, pooling between them, and a linear layer.

    At widths 1, 1/2, 1/4, 1/8 and 1/16 it has 1,556,874, 391,370, 98,922, 25,274 and 6,594 parameters for
    ten classes. Its norm is GroupNorm in groups of four channels, where the published one is BatchNorm: these
    groups are the same in a narrower network.

    Args:
        width: share of the channels, rounded up; a multiple of four of each has to be left.
        scaler: whether convolutions are followed by a :class:`.Scaler`, as published.
    """
    channels, layers = input_shape[0], list[nn.Module]()
    for index, full in enumerate(_CHANNELS):
        here = math.ceil(width * full)
        if not 0 < width <= 1 or here % _GROUP:
            remedy = f"use a share of at most 1 that leaves a multiple of {_GROUP}, such as 0.5 or 0.0625"
            raise ValueError(f"The width {width:g} leaves {here} of {full} channels; {remedy}.")
        if index:
            layers.append(nn.MaxPool2d(2))
        layers += [nn.Conv2d(channels, here, 3, padding=1), *([Scaler(width)] if scaler else [])]
        layers += [nn.GroupNorm(here // _GROUP, here), nn.ReLU()]
        channels = here
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


@MODELS.register("moderate_cnn")
def moderate_cnn(num_classes: int = 10, input_shape: tuple[int, int, int] = (3, 32, 32)) -> nn.Sequential:
    """NVFlare's for CIFAR-10, of FedMA (Wang et al. 2020, Federated Learning with Matched Averaging).

    Three times two 3x3 convolutions and pool, 32 to 256 channels, then 512 and 512 units; 3,491,530
    parameters for ten classes. Dropout, of 5% of the channels and 10% of the units, is not learned.
    """
    channels, height, width = input_shape
    layers = list[nn.Module]()
    for index, here in enumerate((32, 64, 128, 128, 256, 256)):
        layers += [nn.Conv2d(channels, here, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if index % 2 else []
        layers += [nn.Dropout2d(0.05)] if index == 3 else []
        channels = here
    layers += [
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(channels * (height // 8) * (width // 8), 512),
        nn.ReLU(),
    ]
    layers += [nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, num_classes)]
    return nn.Sequential(*layers)


ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "tanh": nn.Tanh}


@MODELS.register("mlp")
def mlp(
    num_classes: int, input_shape: Sequence[int], hidden: Sequence[int] = (256, 256),
    activation: str = "gelu", dropout: float | None = None, temperature: float = 0.1,
    initial: Literal["torch", "he"] = "torch",
) -> nn.Sequential:  # fmt: skip
    """The paper's network for input selection (App. I.3): two hidden layers of 256 units with GELU.

    The paper starts from "Kaiming uniform", which is two things: torch's start of nn.Linear, U(-b, b) with
    ``b = sqrt(1 / inputs)`` for weights and biases (Kaiming uniform with a = sqrt(5)), and that of He et al.
    (2015), ``b = sqrt(6 / inputs)`` (the gain of ReLU) with biases at 0.

    Args:
        input_shape: shape of one example; more than one dimension is flattened first.
        hidden: units of each hidden layer; none leaves a linear model.
        activation: ``gelu``, ``relu`` or ``tanh``.
        dropout: initial drop rate of a learned dropout layer after each hidden layer; None for none.
        initial: ``torch`` or ``he``; default values, which partitions not trained yet keep, are a sixth as
            large in variance with the first.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"Unknown activation {activation!r}: {nearest(activation, ACTIVATIONS)}")
    require(initial in ("torch", "he"), f"initial is torch or he, got {initial!r}.")
    if any(units < 1 for units in hidden):
        raise ValueError(f"Every hidden layer needs at least one unit, got {list(hidden)}.")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if len(input_shape) > 1:
        layers["flatten"] = nn.Flatten()
    features = math.prod(input_shape)
    for i, units in enumerate(hidden, start=1):
        layers[f"fc{i}"] = _linear(features, units, initial)
        layers[f"{activation}{i}"] = ACTIVATIONS[activation]()
        if dropout is not None:
            layers[f"dropout{i}"] = ConcreteDropout(dropout, temperature)
        features = units
    layers["classes"] = _linear(features, num_classes, initial)
    return nn.Sequential(layers)


def _linear(inputs: int, outputs: int, initial: str) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    if initial == "he":
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    return layer
