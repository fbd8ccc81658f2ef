"""ParameterSpace: which numbers of a module are trained, stacked norms, tied weights, the way back."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedpart import ParameterSpace, Task
from fedpart.partition.inspection import stacked_parameters
from fedpart.partition.proportions import largest_remainders


class Scaled(nn.Module):
    stacked_parameters = {"scale": "product", "shift": "sum"}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.shift = nn.Parameter(torch.full((4,), 0.5))

    def forward(self, x):
        return self.fc(x) * self.scale + self.shift


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.embed(x))


def test_tensors_give_the_module_back():
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3))
    nn.init.uniform_(module[1].weight)
    nn.init.uniform_(module[1].bias)
    space = ParameterSpace(module, 3)
    x, initial = torch.randn(5, 2, 4, 4), space.initial()
    space.initial().zero_()  # a copy
    assert torch.equal(space.initial(), initial)
    assert torch.equal(functional_call(module, space.tensors(space.initial()), (x,)), module(x))
    assert space.size == 4 * 2 * 9 + 4 + 3 * (4 + 4) + 16 * 3 + 3


NORMS = [nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.RMSNorm(4), nn.InstanceNorm1d(4, affine=True)]


@pytest.mark.parametrize("norm", NORMS)
def test_norms_are_stacked(norm):
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    space = ParameterSpace(norm, 3)
    initial = space.initial()
    assert torch.equal(initial[:12], torch.cat([norm.weight.detach(), torch.ones(8)]))
    copies = torch.randn(3, 4)
    flat = initial.clone()
    flat[:12] = copies.reshape(-1)
    if getattr(norm, "bias", None) is not None:
        assert torch.equal(initial[16:], torch.zeros(8))
        flat[12:] = 2 * copies.reshape(-1)
        torch.testing.assert_close(space.tensors(flat)["bias"], 2 * (copies[0] + copies[1] + copies[2]))
        assert torch.equal(space.identity(), torch.cat([torch.ones(12), torch.zeros(12)]))
    else:
        assert torch.equal(space.identity(), torch.ones(12))
    torch.testing.assert_close(space.tensors(flat)["weight"], copies[0] * copies[1] * copies[2])


def test_norms_without_scale_and_bias_with_more_and_of_which_one_is_computed():
    norms = nn.LayerNorm(4, elementwise_affine=False), nn.LayerNorm(4, bias=False)
    module = nn.Sequential(nn.Linear(3, 4), *norms)
    assert [e.name for e in ParameterSpace(module, 2).entries] == ["0.weight", "0.bias", "2.weight"]

    class Gated(nn.LayerNorm):
        stacked_parameters = {"gate": "product"}  # noqa: RUF012

        def __init__(self, n):
            super().__init__(n)
            self.gate = nn.Parameter(torch.ones(n))

    folds = {e.name: e.fold for e in ParameterSpace(Gated(3), 2).entries}
    assert folds == {"weight": "product", "bias": "sum", "gate": "product"}
    # A scale that is a function of another tensor is stacked there, and the bias where it always is.
    norm = nn.LayerNorm(3)
    nn.utils.parametrize.register_parametrization(norm, "weight", nn.Identity())
    folds, original = stacked_parameters(nn.Sequential(norm)), "parametrizations.weight.original"
    assert folds == {f"0.{original}": "product", "0.bias": "sum"}
    assert {e.name: e.copies for e in ParameterSpace(norm, 2).entries} == {original: 2, "bias": 2}


def test_declared_stacks():
    space = ParameterSpace(Scaled(), 2)
    assert [(e.name, e.copies, e.fold) for e in space.entries] == [
        ("scale", 2, "product"),
        ("shift", 2, "sum"),
        ("fc.weight", 1, None),
        ("fc.bias", 1, None),
    ]
    flat = space.initial()
    flat[4:8] = 3.0  # the second copy of scale
    flat[12:16] = 1.0  # of shift
    tensors = space.tensors(flat)
    assert tensors["scale"].tolist() == [6.0] * 4 and tensors["shift"].tolist() == [1.5] * 4

    class Plain(Scaled):
        stacked_parameters = {}  # noqa: RUF012

    assert ParameterSpace(Plain(), 2).size == 16 + 8
    by_argument = ParameterSpace(nn.Sequential(Plain()), 2, stacked={"0.scale": "product"})
    assert [e.copies for e in by_argument.entries] == [2, 1, 1, 1]
    task = Task(nn.Sequential(Plain()), stacked={"0.scale": "product"}, samples=3)
    assert task.parameter_space(4).entries[0].copies == 4
    assert task.plain().parameter_space(4).entries[0].copies == 4


def test_tied_weights_appear_once():
    module = Tied()
    space = ParameterSpace(module, 2)
    assert [e.name for e in space.entries] == ["embed.weight", "out.bias"]
    flat = torch.randn(space.size)
    tensors = space.tensors(flat)
    x = torch.tensor([[1, 2], [6, 0]])
    by_hand = tensors["embed.weight"][x] @ tensors["embed.weight"].T + tensors["out.bias"]
    torch.testing.assert_close(functional_call(module, tensors, (x,)), by_hand)
    norms = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4))
    norms[2].weight, norms[2].bias = norms[0].weight, norms[0].bias
    entries = ParameterSpace(norms, 2).entries
    assert [(e.name, e.copies) for e in entries][:2] == [("0.weight", 2), ("0.bias", 2)] and len(entries) == 4


@pytest.mark.parametrize("total", [0, 1, 2, 7, 100, 12345, 50_000_000])
@pytest.mark.parametrize(
    "proportions",
    [(0.7, 0.2, 0.1), (0.9, 0.1), (1 / 3,) * 3, (0.3333333,) * 3, (0.5, 0.5000009), (1 / 255,) * 255],
)
def test_largest_remainders(total, proportions):
    counts = largest_remainders(total, proportions)
    assert sum(counts) == total
    assert all(abs(n - total * p / sum(proportions)) <= 1 for n, p in zip(counts, proportions, strict=True))


@pytest.mark.parametrize("chunks", [1, 3])
def test_the_pull_back_is_the_derivative(chunks):
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    space = ParameterSpace(module, chunks)
    flat = torch.randn(space.size, dtype=torch.float64, requires_grad=True)
    tensors = space.tensors(flat)
    gradients = [torch.randn_like(tensor) for tensor in tensors.values()]
    (expected,) = torch.autograd.grad(list(tensors.values()), flat, gradients)
    found = space.pull_back(flat.detach(), gradients)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
