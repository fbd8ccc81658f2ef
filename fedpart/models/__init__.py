"""Networks of the experiments: plain nn.Modules, each built by ``build(num_classes, input_shape)``."""

from fedpart.models.base import MODELS, ModelBuilder
from fedpart.models.cnn import digits_cnn, mnist_cnn
from fedpart.models.ensembles import ensemble
from fedpart.models.fixup import fixup_resnet
from fedpart.models.frozen import frozen_resnet
from fedpart.models.heterofl_cnn import heterofl_cnn
from fedpart.models.lora_text import lora_text
from fedpart.models.mlp import mlp
from fedpart.models.resnet9 import resnet9
from fedpart.models.wrn import resnet_v2, wrn

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
