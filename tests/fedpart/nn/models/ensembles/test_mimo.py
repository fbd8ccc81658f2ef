"""MIMO: numbers of parameters, which image an output is of, and when it can be partitioned."""

import pytest
import torch
from test_deep import made
from torch import nn

from fedpart import Dataset, ParameterSpace, Task, fit
from fedpart.nn.models import wrn
from fedpart.nn.models.ensembles import Mimo
from fedpart.randomness.noise import Noise, NoiseKey

WRN = {"model": "wrn", "depth": 10, "width": 1}


def numbers(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("members", [1, 2, 3])
def test_numbers_of_parameters(members):
    """(M - 1) k^2 c_in c_out in the first layer, and (M - 1) (d + 1) K in the last."""
    found = made("mimo", [WRN | {"times": members}])
    plain = numbers(wrn(3, (1, 8, 8), depth=10, width=1))
    assert numbers(found) == plain + (members - 1) * (9 * 1 * 16 + (64 + 1) * 3)
    assert found.train()(torch.rand(4, 1, 8, 8)).shape == (4, members, 3)


def test_outputs_are_put_back_in_the_order_of_their_images():
    """Heads that look at their own input alone answer in training as they do at rest, whatever is drawn."""
    members, features, classes = 3, 4, 2
    network = nn.Linear(members * features, members * classes)
    with torch.no_grad():
        blocks = [torch.randn(classes, features) for _ in range(members)]
        network.weight.copy_(torch.block_diag(*blocks))
    found, x = Mimo(network, members), torch.randn(7, features)
    torch.testing.assert_close(found.train()(x), found.eval()(x))
    torch.testing.assert_close(found(x, only=[2, 0]), found(x)[:, [2, 0]])


def test_rows_of_training_have_several_images_by_the_runs_own_draws():
    found, x = made("mimo", [WRN | {"times": 2}]).train(), torch.rand(6, 1, 8, 8)
    seen = []
    found.members[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for seed in (0, 0, 1):
        with Noise(NoiseKey(seed, "test")).active():
            found(x)
    found.eval()(x)
    first, again, other, rest = seen
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(first[:, :1], x) and not torch.equal(first[:, 1:], x)
    assert sorted(first[:, 1:].sum((1, 2, 3)).tolist()) == sorted(x.sum((1, 2, 3)).tolist())
    assert torch.equal(rest, torch.cat([x, x], 1))


def test_training_is_a_function_of_the_seed():
    data, states = Dataset(torch.rand(12, 1, 8, 8), torch.arange(12) % 3), []
    for _ in range(2):
        torch.manual_seed(0)
        task = Task(made("mimo", [WRN | {"times": 2}]), likelihood="ensemble", samples=1)
        states.append(fit(task, data, method="none", chunks=(1.0,), iterations=2, batch_size=6).state)
    assert torch.equal(states[0].w, states[1].w)


def test_a_single_member_is_partitioned():
    assert ParameterSpace(made("mimo", [WRN]), 3).chunks == 3
