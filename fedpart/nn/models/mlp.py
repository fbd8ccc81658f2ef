"""Fully connected networks."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from torch import nn

from fedpart.checks import require
from fedpart.nn.hyperparameters import ConcreteDropout
from fedpart.nn.models.base import MODELS
from fedpart.registry import nearest

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
