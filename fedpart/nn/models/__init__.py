"""Networks of the experiments: plain nn.Modules, each built by ``build(num_classes, input_shape)``."""

from fedpart.nn.models.base import MODELS as MODELS
from fedpart.nn.models.base import ModelBuilder as ModelBuilder
from fedpart.nn.models.ensembles import ensemble as ensemble
from fedpart.nn.models.fixup import fixup_resnet as fixup_resnet
from fedpart.nn.models.pretrained import frozen_resnet as frozen_resnet
from fedpart.nn.models.pretrained import lora_text as lora_text
from fedpart.nn.models.resnet9 import resnet9 as resnet9
from fedpart.nn.models.small import digits_cnn as digits_cnn
from fedpart.nn.models.small import heterofl_cnn as heterofl_cnn
from fedpart.nn.models.small import mlp as mlp
from fedpart.nn.models.small import mnist_cnn as mnist_cnn
from fedpart.nn.models.small import moderate_cnn as moderate_cnn
from fedpart.nn.models.wrn import resnet_v2 as resnet_v2
from fedpart.nn.models.wrn import wrn as wrn
