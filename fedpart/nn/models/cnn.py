"""Convolutional networks for small images, with learned dropout between layers."""

from collections import OrderedDict
from math import ceil

from torch import nn

from fedpart.nn.hyperparameters import ConcreteDropout
from fedpart.nn.layers import PooledConv2d


def _cnn(
    channels: tuple[int, ...],
    hidden: tuple[int, ...],
    num_classes: int,
    input_shape: tuple[int, int, int],
    rate: float | None,
    temperature: float,
    share: float,
) -> nn.Sequential:
    """Twice conv 5x5 and pool, then fully connected layers; ReLU and dropout after each but the last."""
    depth, height, width = input_shape
    if height < 4 or width < 4:
        raise ValueError(f"This network pools twice and needs images of at least 4x4, got {height}x{width}.")
    if not 0 < share <= 1:
        raise ValueError(f"The width is a share of the units, above 0 and at most 1, got {share:g}.")
    channels, hidden = (tuple(ceil(share * units) for units in layer) for layer in (channels, hidden))
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


def mnist_cnn(
    num_classes: int = 10,
    input_shape: tuple[int, int, int] = (1, 28, 28),
    dropout: float | None = 0.1,
    temperature: float = 0.1,
    width: float = 1.0,
) -> nn.Sequential:
    """The paper's MNIST network (Schwobel et al. 2021): 20 and 50 channels, 500 and 50 units.

    It has 1,276,630 parameters for ten classes.

    Args:
        num_classes: K outputs.
        input_shape: (channels, height, width).
        dropout: initial drop rate of the four learned dropout layers between layers; None for none.
        temperature: of the concrete relaxation.
        width: share of the channels and units, rounded up: 0.5 has 319,570 parameters, 0.25 has 83,296.
    """
    return _cnn((20, 50), (500, 50), num_classes, input_shape, dropout, temperature, width)


def digits_cnn(
    num_classes: int = 10,
    input_shape: tuple[int, int, int] = (1, 28, 28),
    dropout: float | None = 0.1,
    temperature: float = 0.1,
    width: float = 1.0,
) -> nn.Sequential:
    """A small relative of :func:`mnist_cnn` for the embedded digits: 8 and 16 channels, 64 units."""
    return _cnn((8, 16), (64,), num_classes, input_shape, dropout, temperature, width)
