"""What a first pass refuses besides draws: layers computed again, and buffers that change."""

import pytest
import torch
from torch import nn

from fedpart import Task
from fedpart.randomness.noise import Noise, NoiseKey


def outputs(net, training=True):
    task = Task(net, samples=1)
    w = task.parameter_space(1).tensors(task.parameter_space(1).initial())
    noise = Noise(NoiseKey(0, "test"))
    return task.outputs(w, task.psi_space.initial(), torch.ones(3, 4), noise, dropout=training)


class Checkpointed(nn.Module):
    def __init__(self, again, *layers):
        super().__init__()
        self.again, self.block = again, nn.Sequential(nn.Linear(4, 4), *layers)

    def forward(self, x):
        return self.again(self.block, x)


def averaged(layer, x):
    layer.state.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)


def made_again(layer, x):
    layer.state = torch.ones(4)


def grown(layer, x):
    layer.state = torch.zeros(7)


class Stateful(nn.Module):
    def __init__(self, update, training_alone=False):
        super().__init__()
        self.update, self.training_alone = update, training_alone
        self.register_buffer("state", torch.ones(4))

    def forward(self, x):
        if self.training or not self.training_alone:
            self.update(self, 2 * x)
        return x


@pytest.mark.parametrize("update", [made_again, grown])
def test_a_cache_may_be_made_again_or_grow(update):
    outputs(nn.Sequential(nn.Linear(4, 4), Stateful(update)))


def test_a_layer_that_changes_nothing_in_evaluation_mode_may_stay_in_it():
    net = nn.Sequential(nn.Linear(4, 4), Stateful(averaged, training_alone=True))
    with pytest.raises(ValueError, match="changes its buffer"):
        outputs(net)
    net[1].eval()
    outputs(net)


@pytest.mark.parametrize("training", [True, False])
def test_a_network_that_does_neither_passes(training):
    outputs(
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), Checkpointed(lambda f, x: f(x))), training
    )
