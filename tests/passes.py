"""Networks whose passes are watched: layers that call a function, are computed again, or keep something."""

import torch
from problems import outputs
from torch import nn

from fedpart.randomness.noise import Noise, NoiseKey

ONES = torch.ones(3, 4)


class Model(nn.Module):
    """As a task wraps it: the network is a part called ``module``."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


class Calls(nn.Module):
    """Adds what a function of its inputs returns."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return x + self.call(x)


def nested(call):
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Calls(call)))


class Checkpointed(nn.Module):
    """Has its layers computed by ``again(layers, inputs)``."""

    def __init__(self, again, *layers):
        super().__init__()
        self.again, self.block = again, nn.Sequential(nn.Linear(4, 4), *layers)

    def forward(self, x):
        return self.again(self.block, x)


class Stateful(nn.Module):
    """Has a buffer, which a function of the layer and its inputs updates."""

    def __init__(self, update, training_alone=False):
        super().__init__()
        self.update, self.training_alone = update, training_alone
        self.register_buffer("state", torch.ones(4))

    def forward(self, x):
        if self.training or not self.training_alone:
            self.update(self, 2 * x)
        return x


def averaged(layer, x):
    layer.state.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)


def passed(net, training=True):
    """The outputs of a pass of a task with noise."""
    return outputs(net, ONES, Noise(NoiseKey(0, "test")), dropout=training)
