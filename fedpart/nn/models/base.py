"""The names of networks."""

from collections.abc import Callable

from torch import nn

from fedpart.registry import Registry

ModelBuilder = Callable[..., nn.Module]
"""``build(num_classes, input_shape, **options)``: K outputs; (channels, height, width).

Where they have these options, ``dropout`` is the initial rate of learned dropout layers, None for none, and
``temperature`` that of their relaxation. What does not fit is a ValueError.
"""
MODELS: Registry[ModelBuilder] = Registry("model", makes=(nn.Module,))
