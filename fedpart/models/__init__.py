"""Networks of the experiments: plain nn.Modules, each built by ``build(num_classes, input_shape)``."""

from collections.abc import Callable

from torch import nn

from fedpart.models.cnn import digits_cnn, mnist_cnn
from fedpart.models.mlp import mlp
from fedpart.models.resnet9 import resnet9
from fedpart.registry import Registry

ModelBuilder = Callable[..., nn.Module]
MODELS: Registry[ModelBuilder] = Registry("model")
MODELS.register("mnist_cnn")(mnist_cnn)
MODELS.register("digits_cnn")(digits_cnn)
MODELS.register("mlp")(mlp)
MODELS.register("resnet9")(resnet9)

__all__ = ["MODELS", "ModelBuilder", "digits_cnn", "mlp", "mnist_cnn", "resnet9"]
