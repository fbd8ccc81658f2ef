"""A module computes with other tensors for a while, and is as it was afterwards."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedpart.task.model import Substitution


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))) + self.shift


def replacements(module):
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: torch.randn_like(value, requires_grad=True) for name, value in tensors.items()}


def test_it_is_functional_call():
    module, x = Tied(), torch.randn(5, 3)
    tensors = replacements(module)
    expected = functional_call(module, tensors, (x,))
    with Substitution(module)(tensors):
        found = module(x)
    assert torch.equal(found, expected)
    for a, b in zip(
        torch.autograd.grad(found.sum(), list(tensors.values())),
        torch.autograd.grad(expected.sum(), list(tensors.values())),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_the_module_is_as_it_was_also_after_an_error():
    module = Tied()
    substitution, before = Substitution(module), dict(module.named_parameters(remove_duplicate=False))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), substitution(replacements(module)):
        module(torch.randn(5, 4))
    with (
        pytest.raises(KeyError, match="third"),
        substitution({**replacements(module), "third": torch.ones(1)}),
    ):
        pass
    after = dict(module.named_parameters(remove_duplicate=False))
    assert after.keys() == before.keys() and all(after[name] is before[name] for name in before)
    assert module.second.weight is module.first.weight and torch.equal(module.shift, torch.ones(3))
