"""Networks of the experiments: plain nn.Modules, each built by ``build(num_classes, input_shape)``."""

from fedpart.nn.models.base import MODELS, ModelBuilder
from fedpart.nn.models.cnn import digits_cnn, mnist_cnn
from fedpart.nn.models.ensembles import ensemble
from fedpart.nn.models.fixup import fixup_resnet
from fedpart.nn.models.frozen import frozen_resnet
from fedpart.nn.models.heterofl_cnn import heterofl_cnn
from fedpart.nn.models.lora_text import lora_text
from fedpart.nn.models.mlp import mlp
from fedpart.nn.models.resnet9 import resnet9
from fedpart.nn.models.wrn import resnet_v2, wrn

for _build in (
    mnist_cnn,
    digits_cnn,
    heterofl_cnn,
    mlp,
    resnet9,
    wrn,
    resnet_v2,
    fixup_resnet,
    frozen_resnet,
    lora_text,
    ensemble,
):
    MODELS.register(_build.__name__)(_build)

__all__ = [
    "MODELS",
    "ModelBuilder",
    "digits_cnn",
    "ensemble",
    "fixup_resnet",
    "frozen_resnet",
    "heterofl_cnn",
    "lora_text",
    "mlp",
    "mnist_cnn",
    "resnet9",
    "resnet_v2",
    "wrn",
]
