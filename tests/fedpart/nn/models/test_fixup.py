"""Fixup residual networks in closed form: their start, their sizes, and their scalars in partitions."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpart import (
    AdamSettings,
    AdamWSettings,
    Dataset,
    ParameterSpace,
    RandomPartition,
    SGDSettings,
    Task,
    Training,
    TrainingSettings,
)
from fedpart.nn.models import fixup_resnet
from fedpart.nn.models.fixup import FixupBlock


def of_scalars(network):
    return {name: p for name, p in network.named_parameters() if p.numel() == 1}


def test_training_starts_at_the_last_layer_and_reaches_all_of_it_in_two_steps():
    torch.manual_seed(0)
    network = fixup_resnet(width=4)
    images, labels = torch.rand(20, 3, 16, 16), torch.arange(20) % 10
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)

    def moving():
        optimiser.zero_grad()
        functional.cross_entropy(network(images), labels).backward()
        return {name for name, p in network.named_parameters() if p.grad.any()}

    assert not network(images).any(), "so the loss is that of chance"
    assert functional.cross_entropy(network(images), labels).item() == pytest.approx(math.log(10))
    assert moving() - {"classes.bias"} == {"classes.weight"}
    assert network.classes.bias.grad.abs().max() < 1e-7, "as many of every class"
    optimiser.step()
    found = moving()
    assert found >= {"stem.weight", "stage1.0.conv2.weight", "stage3.0.conv2.weight", "stage2.0.bias2b"}
    for waits in ("conv1.weight", "bias1b", "bias2a", "scale"):
        assert not any(name.endswith(waits) for name in found)
    optimiser.step()
    assert moving() == dict(network.named_parameters()).keys()


@pytest.mark.parametrize(
    "depth, width, numbers, scalars, products",
    [(8, 16, 74_827, 17, 12.24e6), (14, 16, 171_610, 32, 26.39e6), (8, 8, 18_995, 17, None)],
)
def test_sizes(depth, width, numbers, scalars, products):
    network, done = fixup_resnet(depth=depth, width=width), []

    def count(layer, _, output):
        done.append(layer.weight[0].numel() * output[0].numel())

    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(count)
    network(torch.rand(1, 3, 32, 32))
    assert sum(p.numel() for p in network.parameters()) == numbers
    assert len(of_scalars(network)) == scalars
    assert products is None or sum(done) == pytest.approx(products, rel=1e-3)


def perturbed(depth=8):
    torch.manual_seed(1)
    network = fixup_resnet(width=4, depth=depth)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def test_every_scalar_is_stacked_and_first_convolutions_start_as_hes_over_the_root_of_blocks():
    network = perturbed()
    space = ParameterSpace(network, 3)
    stacked = {entry.name: entry.fold for entry in space.entries if entry.copies == 3}
    assert stacked == {
        name: "product" if name.endswith("scale") else "sum" for name in of_scalars(network)
    }, "and the linear layer's bias is not"
    partition = RandomPartition(space, (0.8, 0.1, 0.1))
    whole = partition.materialise(partition.initial(), 3)
    assert all(torch.equal(whole[name], p) for name, p in network.named_parameters())
    torch.manual_seed(0)
    for depth in (8, 14):
        weight = fixup_resnet(depth=depth, width=64).stage3[0].conv1.weight
        wanted = math.sqrt(2 / (9 * 256)) / math.sqrt((depth - 2) / 2)
        assert abs(weight.std().item() / wanted - 1) < 3 / math.sqrt(2 * weight.numel())


@pytest.mark.parametrize("side", [8, 7])
def test_the_skip_of_a_block_that_halves_the_image(side):
    block, x = FixupBlock(4, 8, 2, blocks=3), torch.randn(2, 4, side, side)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        inner = (block.conv1(x + block.bias1a) + block.bias1b).relu() + block.bias2a
        branch = block.scale * block.conv2(inner) + block.bias2b
        pooled = nn.AvgPool2d(1, 2)(x + block.bias1a)
        out = block(x)
    torch.testing.assert_close(out[:, :4], (branch[:, :4] + pooled).relu())
    torch.testing.assert_close(out[:, 4:], branch[:, 4:].relu())


OPTIMISERS = {
    "sgd": (SGDSettings(0.05, momentum=0.9), {"weight_decay": 0.01}),
    "adam": (AdamSettings(0.01), {}),
    "adamw": (AdamWSettings(0.01), {"weight_decay": 0.1}),
}


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("method, chunks", [("none", (1.0,)), ("partitioned", (0.5, 0.5))])
def test_scalars_step_at_a_rate_of_their_own(name, method, chunks):
    """A tenth of the step that they would make, decay included; everything else steps as it would."""
    optimiser, more = OPTIMISERS[name]
    task = Task(perturbed(), samples=1)
    data = Dataset(torch.rand(20, 3, 8, 8), torch.arange(20) % 10)
    found = {}
    for scalars in (1.0, 0.1):
        common = {"chunks": chunks, "method": method, "optimiser": optimiser, "iterations": 1, **more}
        settings = TrainingSettings(scalars=scalars, **common)
        state = Training(task, data, settings)
        before = state.w.clone()
        for k in range(1, len(chunks) + 1):
            state.parameter_step(k, data)
            if k == 1:  # later ones start from another network
                found[scalars] = (state.w - before)[state.partition.slice(1)]
    slow = state.partition.take(state.partition.space_of(1).stacked(), 1, 1)
    assert slow.sum() == len(of_scalars(task.module)), "the first copy of each"
    assert found[1.0][~slow].equal(found[0.1][~slow])
    torch.testing.assert_close(found[0.1][slow], 0.1 * found[1.0][slow], rtol=1e-3, atol=1e-7)
    assert found[0.1][slow].any()
