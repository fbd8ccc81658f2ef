"""The networks of the experiments."""

import math

import pytest
import torch
from torch import nn

from fedpart import ConcreteDropout, RandomPartition, Task
from fedpart.nn.models import MODELS, mlp, mnist_cnn, resnet9

ELSEWHERE = {"frozen_resnet", "lora_text", "ensemble"}  # test_fine_tuned.py, ensembles/


def test_mnist_cnn_is_the_papers():
    assert sum(p.numel() for p in mnist_cnn(dropout=None).parameters()) == 1_276_630
    rates = [
        layer.physical()["rate [%]"] for layer in mnist_cnn().modules() if isinstance(layer, ConcreteDropout)
    ]
    assert rates == pytest.approx([10.0] * 4, abs=1e-4)


@pytest.mark.parametrize("name", sorted(MODELS.keys() - ELSEWHERE))
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 9)])
def test_outputs(name, shape):
    module = MODELS.resolve(name)(num_classes=7, input_shape=shape)
    assert module(torch.rand(2, *shape)).shape == (2, 7)


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


def test_resnet9_is_the_standard_one():
    network = resnet9(dropout=None)
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert sum(p.numel() for p in network.parameters()) == 6_573_130
    assert [layer.out_channels for layer in convolutions] == [64, 128, 128, 128, 256, 512, 512, 512]
    public = resnet9(dropout=None, bias=True)
    assert sum(p.numel() for p in public.parameters()) == 6_575_370
    channels = sum(layer.out_channels for layer in convolutions)
    assert (
        sum(p.numel() for p in resnet9(dropout=None, bias=True, groups=2).parameters())
        == 6_573_130 + channels
    )
    sizes = []
    for layer in convolutions:
        layer.register_forward_hook(lambda _, __, out: sizes.append(out.shape[-1]))
    network(torch.rand(1, 3, 32, 32))
    assert sizes == [32, 32, 16, 16, 16, 8, 4, 4]
    x, plain = torch.rand(2, 3, 32, 32), resnet9(dropout=None, logit_scale=1.0)
    plain.load_state_dict(network.state_dict())
    torch.testing.assert_close(network(x), plain(x) / 8)  # Page's factor


def test_resnet9_partitions():
    """Subnetwork k computes with partitions 1..k alone, its norms folded; dropout sits in residual blocks."""
    torch.manual_seed(0)
    task = Task(resnet9(4, (1, 8, 8), width=4, groups=2), samples=1)
    assert task.psi_names == ("residual1.block.dropout.logit", "residual3.block.dropout.logit")
    partition = RandomPartition(task.parameter_space(2), (0.9, 0.1))
    plain = sum(p.numel() for p in resnet9(4, (1, 8, 8), dropout=None, width=4, groups=2).parameters())
    assert partition.space.size == plain + 2 * (4 + 8 * 3 + 16 + 32 * 3)  # stacked twice
    w, x, psi = partition.initial(), torch.rand(3, 1, 8, 8), task.psi_space.initial()
    first, second = w.clone(), w.clone()
    first[partition.slice(1)] += 0.1
    second[partition.slice(2)] += 0.1
    outputs = {
        (name, k): task.outputs(partition.materialise(values, k), psi, x, None, dropout=False)
        for name, values in (("initial", w), ("first", first), ("second", second))
        for k in (1, 2)
    }
    assert outputs["second", 1].equal(outputs["initial", 1])
    assert not outputs["second", 2].allclose(outputs["initial", 2])
    assert not outputs["first", 1].allclose(outputs["initial", 1])


def test_resnet9_dropout_in_stages():
    task = Task(resnet9(4, (1, 8, 8), width=4, groups=2, dropout_in="stage"))
    assert task.psi_names == tuple(f"stage{i}.dropout.logit" for i in (1, 2, 3))
