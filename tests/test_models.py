"""The networks of the experiments."""

import math

import pytest
import torch
from torch import nn

from fedpart import ConcreteDropout, Task
from fedpart.models import MODELS, digits_cnn, mlp, mnist_cnn


def test_mnist_cnn_is_the_papers():
    assert sum(p.numel() for p in mnist_cnn(dropout=None).parameters()) == 1_276_630
    rates = [
        layer.physical()["rate [%]"] for layer in mnist_cnn().modules() if isinstance(layer, ConcreteDropout)
    ]
    assert rates == pytest.approx([10.0] * 4, abs=1e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 9)])
def test_outputs(name, shape):
    module = MODELS.resolve(name)(num_classes=7, input_shape=shape)
    assert module(torch.rand(2, *shape)).shape == (2, 7)


def test_too_small_images():
    with pytest.raises(ValueError, match="pools twice and needs images of at least 4x4, got 3x8"):
        digits_cnn(input_shape=(1, 3, 8))


def test_mlp_is_the_papers():
    network = mlp(2, (30,))
    assert sum(p.numel() for p in network.parameters()) == 31 * 256 + 257 * 256 + 257 * 2
    assert [type(layer) for layer in network] == [nn.Linear, nn.GELU, nn.Linear, nn.GELU, nn.Linear]


@pytest.mark.parametrize("initial, factor", [("torch", 1), ("he", 6)])
def test_mlp_starts_by_kaiming_uniform(initial, factor):
    """U(-b, b) with b = sqrt(6 / fan-in), or torch's sqrt(1 / fan-in), in every layer, the last included."""
    torch.manual_seed(0)
    for layer in mlp(100, (3, 10), hidden=(400, 50), activation="tanh", initial=initial):
        if isinstance(layer, nn.Linear):
            bound = math.sqrt(factor / layer.in_features)
            assert bool(layer.bias.any()) == (initial == "torch")
            assert 0.99 * bound < layer.weight.abs().max() <= bound
            deviation = bound / math.sqrt(3)
            assert layer.weight.std().item() == pytest.approx(deviation, rel=0.05)
            assert abs(layer.weight.mean()) < 5 * deviation / math.sqrt(layer.weight.numel())


def test_mlp_options():
    network = mlp(3, (2, 4), hidden=[5], activation="relu", dropout=0.2, temperature=0.3)
    assert list(dict(network.named_children())) == ["flatten", "fc1", "relu1", "dropout1", "classes"]
    assert network.dropout1.physical()["rate [%]"] == pytest.approx(20.0, abs=1e-4)
    assert network.dropout1.temperature == 0.3
    assert Task(network).psi_names == ("dropout1.logit",)
    linear = mlp(3, (4,), hidden=())
    x = torch.randn(6, 4)
    torch.testing.assert_close(linear(x), x @ linear.classes.weight.T + linear.classes.bias)
    with pytest.raises(ValueError, match="Unknown activation 'gel': did you mean 'gelu'"):
        mlp(2, (4,), activation="gel")
    with pytest.raises(ValueError, match=r"at least one unit, got \[8, 0\]"):
        mlp(2, (4,), hidden=(8, 0))
