"""Frozen weights of 16 bits stay so, and compute with the rest; where that cannot be, they are named."""

import copy

import pytest
import torch
from adapted import Attending, chain, lstm_without_dropout, trained
from problems import CLASSES, SIZE, outputs, shards
from torch import nn
from torch.nn import functional as F

from fedpart import Task, federate


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_frozen_body_of_16_bits_stays_so_and_the_head_is_trained_in_32(dtype):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8))
    head = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    net = nn.Sequential(body.requires_grad_(False).to(dtype), head)
    head[0].to(dtype)
    task = Task(net, samples=1)
    kinds = {name: parameter.dtype for name, parameter in task.module.named_parameters()}
    assert {kind for name, kind in kinds.items() if name.startswith("0.")} == {dtype}
    assert {kind for name, kind in kinds.items() if name.startswith("1.")} == {torch.float32}
    x = torch.rand(5, 1, SIZE, SIZE)
    with torch.no_grad():
        expected = copy.deepcopy(head).float()(body(x.to(dtype)).float())
    found = outputs(task, x)
    assert found.dtype == torch.float32 and torch.equal(found, expected)
    result = federate(task, shards([4, 5, 3, 6]), rounds=2)
    after = result.module()
    assert all(torch.equal(a, b) for a, b in zip(after[0].parameters(), body.parameters(), strict=True))
    assert not torch.equal(after[1][0].weight, head[0].weight.float())
    with torch.no_grad():
        assert torch.equal(after(x), result.predict(x))


def half(net, part):
    net.get_submodule(part).requires_grad_(False).to(torch.bfloat16)
    return net


HALVES = {
    "linear": lambda: half(chain(), "3"),
    "attention": lambda: half(Attending(), "encoder"),
    "recurrent": lambda: half(lstm_without_dropout(), "body"),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name, kind", [("attention", "bf16"), ("recurrent", "fp32"), ("linear", "bf16")])
def test_any_frozen_part_of_16_bits_computes(name, kind):
    """To about what the same frozen values compute in 32 bits."""
    networks = HALVES[name](), HALVES[name]().float()
    federation, wide = (trained(net, of={"precision": kind}) for net in networks)
    assert {tensor.dtype for tensor in federation.task.frozen.values()} == {torch.bfloat16}
    moved = (wide.w - wide.partition.initial()).norm()
    assert (federation.w - wide.w).norm() < 0.01 * moved


class Frozen(nn.Module):
    def __init__(self, part, call):
        super().__init__()
        torch.manual_seed(0)
        self.part, self.call = part.requires_grad_(False).half(), call
        self.head = nn.LazyLinear(CLASSES)
        self(torch.ones(2, 1, SIZE, SIZE))

    def forward(self, x):
        x = x.squeeze(1)
        dtype = torch.float16 if isinstance(self.head, nn.LazyLinear) else x.dtype
        return self.head(self.call(self.part, x.to(dtype)).mean(1).to(x.dtype))


def with_state(part, x):
    state = torch.zeros(1, len(x), 4, dtype=x.dtype)
    return part(x, (state, state))[0]


def packed(part, x):
    lengths = torch.full((len(x),), SIZE)
    found = part(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[0]
    return nn.utils.rnn.pad_packed_sequence(found, batch_first=True)[0]


def lstm():
    return nn.LSTM(SIZE, 4, batch_first=True)


WAYS = {
    "keywords": (lambda: nn.Linear(SIZE, 4), lambda part, x: part(input=x)),
    "attention by keywords": (
        lambda: nn.MultiheadAttention(SIZE, 1, batch_first=True),
        lambda part, x: part(query=x, key=x, value=x, need_weights=False)[0],
    ),
    "state": (lstm, with_state),
    "packed": (lstm, packed),
}


@pytest.mark.parametrize("way", WAYS)
def test_inputs_of_a_frozen_part_have_its_type_however_they_are_given(way):
    make, call = WAYS[way]
    net = Frozen(make(), call)
    x = torch.rand(5, 1, SIZE, SIZE)
    with torch.no_grad():
        half = call(net.part, x.squeeze(1).half()).mean(1).float()
        assert torch.equal(outputs(net, x), net.head(half))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIZE**2, 8).requires_grad_(False).half()
        self.body = nn.Linear(SIZE**2, SIZE**2)

    def forward(self, x):
        return F.linear(self.body(x.flatten(1)), self.first.weight)


def biases_alone():
    net = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, CLASSES)).half()
    net[1].weight.requires_grad_(False)
    return net


TYPES = [(biases_alone, ("1.weight", "1.bias")), (Shared, ("first.weight", "body.weight"))]


@pytest.mark.parametrize("make, names", TYPES)
def test_types_that_do_not_fit_are_named_with_the_line_that_helps(make, names):
    x = torch.rand(5, 1, SIZE, SIZE)
    says = (
        rf"^The frozen parameter '{names[0]}' is float16 while '{names[1]}' is float32, .*; "
        r"call module.float\(\) before Task\(module\)\.$"
    )
    with pytest.raises(ValueError, match=says):
        outputs(make(), x)
    outputs(make().float(), x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # another error is left alone
        outputs(Frozen(nn.Linear(SIZE, 4), lambda part, x: part(x)), torch.rand(5, 1, SIZE, SIZE + 1))
