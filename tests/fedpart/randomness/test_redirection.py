"""What a network draws from is found in its first pass; generators that cannot be redirected are refused."""

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from fedpart import Task, uniform
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.randomness.redirect import Redirection, TorchDraws


class Model(nn.Module):
    """As a task wraps it: the network is a part called ``module``."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


class Calls(nn.Module):
    """Adds what a function returns, and counts how often it is called."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return x + self.call(x)


def passed(model, redirection, training=True):
    with Noise(NoiseKey(0, "test")).active(), redirection(training):
        return model.train(training)(torch.ones(3, 4))


def nested(call):
    return Model(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Calls(call))))


@pytest.mark.parametrize(
    "call, what",
    [
        (lambda x: random.random(), "Python's random module"),
        (lambda x: np.random.rand(), "NumPy's global generator"),
        (lambda x: float(np.random.permutation(3)[0]), "NumPy's global generator"),
    ],
    ids=["random", "numpy", "permutation"],
)
def test_a_generator_of_the_process_is_refused_with_the_layer_that_moves_it(call, what):
    model = nested(call)
    redirection = Redirection(model)
    for _ in range(2):  # it is not accepted the second time either
        with pytest.raises(
            ValueError, match=rf"^Calls at '1\.1' draws from {what}, .*; draw with torch.rand"
        ):
            passed(model, redirection)


def test_the_network_itself_is_named_as_the_top_level():
    model = Model(Calls(lambda x: random.random()))
    with pytest.raises(ValueError, match="Calls at 'the top level' draws from Python's random module"):
        passed(model, Redirection(model))


def test_a_layer_that_calls_one_after_it_has_drawn_is_still_the_one():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Tanh()

        def forward(self, x):
            return self.inner(x * random.random())

    model = Model(nn.Sequential(nn.Tanh(), Outer()))
    with pytest.raises(ValueError, match="Outer at '1' draws"):
        passed(model, Redirection(model))


def test_a_network_that_draws_nothing_is_watched_once():
    model = nested(lambda x: uniform(x.shape, like=x))  # this is no draw of torch's
    redirection = Redirection(model)
    for training in (True, False):
        assert not isinstance(redirection(training), nullcontext)
        passed(model, redirection, training)
        assert isinstance(redirection(training), nullcontext)


def test_what_draws_in_training_alone_is_found_in_training():
    model = Model(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
    redirection = Redirection(model)
    passed(model, redirection, training=False)
    assert isinstance(redirection(False), nullcontext)
    first = passed(model, redirection)
    assert isinstance(redirection(True), TorchDraws) and (first == 0).any()
    torch.manual_seed(0)
    again = [passed(model, redirection) for _ in range(2)]
    assert torch.equal(again[0], first) and torch.equal(again[1], first)
    assert isinstance(redirection(False), nullcontext)


def test_a_pass_that_fails_settles_nothing_and_leaves_no_hook():
    def failing(x):
        raise RuntimeError("no")

    model = nested(failing)
    redirection = Redirection(model)
    before = [dict(hooks) for hooks in hooks_of_all_modules()]
    with pytest.raises(RuntimeError, match="no"):
        passed(model, redirection)
    assert [dict(hooks) for hooks in hooks_of_all_modules()] == before
    assert not isinstance(redirection(True), nullcontext)


def hooks_of_all_modules():
    modules = nn.modules.module
    return modules._global_forward_pre_hooks, modules._global_forward_hooks


def test_a_task_refuses_it_at_the_first_loss():
    task = Task(nn.Sequential(nn.Linear(4, 2), Calls(lambda x: random.gauss(0, 1))), samples=1)
    w = task.parameter_space(1).tensors(task.parameter_space(1).initial())
    x, psi = torch.ones(3, 4), task.psi_space.initial()
    with pytest.raises(ValueError, match="Calls at '1' draws from Python's random module"):
        task.outputs(w, psi, x, Noise(NoiseKey(0, "test")))
    task.outputs(w, psi, x, None)  # without noise the caller has asked for any numbers
