"""The names of networks."""

from collections.abc import Callable

from torch import nn

from fedpart.registry import Registry

ModelBuilder = Callable[..., nn.Module]
MODELS: Registry[ModelBuilder] = Registry("model", makes=(nn.Module,))
