"""torchvision's networks: its own classes, made small by their own arguments."""

import torch
from torch import nn
from torchvision.models import ConvNeXt, ResNet, VisionTransformer, mobilenet_v3_small
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.resnet import BasicBlock

from fedpart import replace_batchnorm
from stock.kinds import Stock, classes, of_classes


def images(examples, generator):
    targets = torch.randint(3, (examples,), generator=generator)
    return torch.rand(examples, 3, 32, 32, generator=generator) * (1 + targets.view(-1, 1, 1, 1)), targets


def resnet():
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=3)


def frozen_resnet(dropout):
    """Fine-tuning: the body's weights and statistics are given, scales and biases are trained."""
    net = resnet()
    with torch.no_grad():
        net(torch.rand(2, 3, 32, 32))  # in training mode, so there are statistics
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            layer.requires_grad_(False)
    return net.eval()


def replaced_resnet(dropout):
    """All of its 5 million weights would only cost time: the widest two stages are constants."""
    net = replace_batchnorm(resnet(), "group")
    net.layer3.requires_grad_(False)
    net.layer4.requires_grad_(False)
    return net


def mobilenet(dropout):
    net = mobilenet_v3_small(num_classes=3, dropout=dropout, width_mult=0.25, reduced_tail=True)
    return replace_batchnorm(net, "group")


def vit(dropout):
    return VisionTransformer(32, 8, 2, 2, 16, 32, dropout, dropout, num_classes=3)


def convnext(dropout):
    blocks = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 2)]
    return ConvNeXt(blocks, stochastic_depth_prob=dropout, num_classes=3)


IN_PLACE = "inplace randomness.*use execution: loop"  # stochastic depth
VISION = {
    "ResNet, frozen BatchNorm": Stock(frozen_resnet, images, classes, of_classes, frozen=True),
    "ResNet, replaced BatchNorm": Stock(replaced_resnet, images, classes, of_classes, frozen=True),
    "mobilenet_v3_small": Stock(mobilenet, images, classes, of_classes),
    "vit": Stock(vit, images, classes, of_classes),
    "convnext": Stock(convnext, images, classes, of_classes, grouped=IN_PLACE),
}
