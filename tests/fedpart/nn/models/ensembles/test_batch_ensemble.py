"""BatchEnsemble: numbers of parameters, the formula, and what members have in common."""

import pytest
import torch
from torch import nn

from fedpart.nn.models import wrn
from fedpart.nn.models.ensembles import batch_ensemble
from fedpart.nn.models.ensembles.batch import RankOne


def numbers(module):
    return sum(parameter.numel() for parameter in module.parameters())


def ones(module):
    for layer in module.modules():
        if isinstance(layer, RankOne):
            nn.init.ones_(layer.inputs)
            nn.init.ones_(layer.outputs)


@pytest.mark.parametrize("members", [1, 3])
def test_numbers_of_parameters(members):
    """M (n_in + n_out) of each layer; with norms of their own their scales and biases too, M - 1 times."""
    plain = wrn(depth=10, width=1)
    layers = [layer for layer in plain.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    more = sum(members * sum(layer.weight.shape[:2]) for layer in layers)
    norms = sum(numbers(layer) for layer in plain.modules() if isinstance(layer, nn.GroupNorm))
    for own, besides in ((False, 0), (True, (members - 1) * (norms + 10))):
        found = batch_ensemble([wrn(depth=10, width=1) for _ in range(members)], own_norms=own)
        assert numbers(found) == numbers(plain) + more + besides


def test_a_member_multiplies_a_layers_inputs_and_outputs():
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 4, 3)
    weight, bias = plain.weight.detach().clone(), plain.bias.detach().clone()
    found = batch_ensemble([nn.Sequential(plain), nn.Sequential(nn.Conv2d(3, 4, 3))])
    x = torch.rand(2, 3, 5, 5)
    outputs = found(x)
    for m, member in enumerate(found.members):
        own = member[0].parametrizations.weight[0]
        assert set(own.inputs.tolist()) | set(own.outputs.tolist()) <= {-1.0, 1.0}
        scaled = nn.functional.conv2d(x * own.inputs.view(-1, 1, 1), weight)
        wanted = scaled * own.outputs.view(-1, 1, 1) + bias.view(-1, 1, 1)
        torch.testing.assert_close(outputs[:, m], wanted)
    outputs.sum().backward()
    first, second = (member[0].parametrizations.weight for member in found.members)
    assert first.original is second.original and first[0].inputs is not second[0].inputs


def test_a_member_without_signs_is_the_plain_network_to_the_bit():
    torch.manual_seed(0)
    plain = wrn(depth=10, width=1)
    torch.manual_seed(0)
    found = batch_ensemble([wrn(depth=10, width=1)])
    ones(found)
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(found(x)[:, 0], plain(x))
