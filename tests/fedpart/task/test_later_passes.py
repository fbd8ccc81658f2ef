"""What a first pass does not show by itself: states that no attribute holds, changes that come later."""

import functools
import os
import random
import time

import numpy as np
import pytest
import refusals
import torch
from torch import nn
from torch.nn import functional as F

import fedpart


def data():
    generator = torch.Generator().manual_seed(7)
    return torch.randn(12, 6, generator=generator), torch.arange(12) % 3


class Net(nn.Module):
    """Two layers, and a forward of one's own."""

    def __init__(self, forward, **kept):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.call = nn.Linear(6, 6), nn.Linear(6, 3), forward
        for name, value in kept.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.call(self, x)


def ours(net, rounds=3):
    local = fedpart.LocalSettings(0.5, 64)
    return fedpart.federate(net, [data()] * 2, rounds=rounds, chunks=(1.0,), method="fedavg", local=local)


CALLS = {"n": 0}
SCALE = None
SCALES = {}
MASKS = {}


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


class Counting(nn.Module):
    passes = 0

    def __init__(self):
        super().__init__()
        self.n, self.b = 0, nn.Linear(6, 3)

    def forward(self, x):
        self.n += 1
        return self.b(x) / self.n


class CountingInItsClass(Counting):
    def forward(self, x):
        CountingInItsClass.passes += 1
        return self.b(x) / CountingInItsClass.passes


@functools.cache
def cell():
    return [0]


def in_a_name(s, x):
    CALLS["n"] += 1
    return s.b(x) / CALLS["n"]


def in_slots(s, x):
    s.o.n += 1
    return s.b(x) / s.o.n


def in_a_cache(s, x):
    cell()[0] += 1
    return s.b(x) / cell()[0]


def by_default(s, x, kept=[]):  # noqa: B006
    kept.append(x.mean().item())
    return s.b(x) + sum(kept)


def deep(s, x):
    s.m[0][0][0][0][0] += 1
    return s.b(x) / s.m[0][0][0][0][0]


def scaled_by_a_name(s, x):
    global SCALE
    if SCALE is None:
        SCALE = x.std()
    return s.b(x / SCALE)


def scaled_by_a_part(s, x):
    if "x" not in SCALES:
        SCALES["x"] = x.std()
    return s.b(x / SCALES["x"])


def scaled_inside():
    kept = {}

    def forward(s, x):
        if not kept:
            kept["x"] = x.std()
        return s.b(x / kept["x"])

    return forward


def scaled_by_the_class(s, x):
    if not hasattr(Counting, "scale"):
        Counting.scale = x.std()
    return s.b(x / Counting.scale)


def masked(s, x):
    if x.shape[1] not in MASKS:
        MASKS[x.shape[1]] = torch.arange(6.0) / 6
    return s.b(x * MASKS[x.shape[1]])


def test_states_wherever_they_are():
    """A name that the first pass reaches is told; others change what the next pass returns."""
    seen, unseen = ("'{}' of .* is changed in forward", "returns other numbers when it computes again .*draw")
    rows = [
        (Net(in_a_name), seen.format("CALLS")),
        (Net(in_slots, o=Slotted()), seen.format("o")),
        (Net(by_default), seen.format("call")),
        (Net(lambda s, x: s.m[0](x), m=[Counting()]), seen.format("m")),
        (CountingInItsClass(), seen.format("passes")),
        (Net(scaled_by_a_name), seen.format("SCALE")),
        (Net(scaled_by_a_part), seen.format("SCALES")),
        (Net(scaled_inside()), seen.format("call")),
        (Net(scaled_by_the_class), seen.format("scale")),
        (Net(in_a_cache), r"keeps what depends on .* in the cache of cell\(\)"),
        (Net(deep, m=[[[[[0]]]]]), seen.format("m")),
        (Net(lambda s, x: s.b(x) * (1 + time.perf_counter() % 1)), unseen),
        (Net(lambda s, x: s.b(x) * (1 + os.urandom(3)[0] + os.urandom(1)[0] / 256)), unseen),
        (Net(lambda s, x: s.b(x) * np.random.default_rng().random()), unseen),
        (Net(lambda s, x: s.b(x) * random.SystemRandom().random()), unseen),
    ]
    refusals.check(
        (f"{at}: {says}", lambda net=net: ours(net), (ValueError, fedpart.ClientError), says)
        for at, (net, says) in enumerate(rows)
    )


def test_a_cache_in_a_global_name_is_taken():
    assert torch.isfinite(ours(Net(masked)).module().b.weight).all() and 6 in MASKS


def late(net, x):
    """A change that the first pass does not make."""
    if abs(net.a.weight.norm() - 1.3994) > 1e-3:  # it begins there
        net.a.weight.data = net.a.weight.data * 0.9
    return net.b(torch.tanh(net.a(x)))


def past_versions(net, x):
    if abs(net.a.weight.norm() - 1.3994) > 1e-3:
        net.a.weight.data.mul_(0.9)
    return net.b(torch.tanh(net.a(x)))


def by_numpy(net, x):
    if abs(net.a.weight.norm() - 1.3994) > 1e-3:
        np.multiply(net.a.weight.detach().numpy(), 0.9, out=net.a.weight.detach().numpy())
    return net.b(torch.tanh(net.a(x)))


def reversed_later(net, x):
    """The sum of the weights stays."""
    if abs(net.a.weight.norm() - 1.3994) > 1e-3:
        net.a.weight.data.copy_(net.a.weight.data.flip(0))
    return net.b(torch.tanh(net.a(x)))


def reversed_at_once(net, x):
    net.a.weight.data.copy_(net.a.weight.data.flip(0))
    return net.b(torch.tanh(net.a(x)))


def in_an_array(net, x):
    net.a.bias.detach().numpy()[::-1].sort()
    return net.b(torch.tanh(net.a(x)))


def clamped(net, x):
    """One that changes no number, of a weight in the middle of the memory that all have in common."""
    net.a.bias.data.clamp_(-9, 9)
    return net.b(torch.tanh(net.a(x)))


def test_weights_that_are_changed_later_and_their_names():
    says = "forward\\(\\) changes '{}', a change that is lost after the pass, .*register_parametrization"
    weight = (late, past_versions, by_numpy, reversed_later, reversed_at_once)
    rows = [*((forward, "a.weight") for forward in weight), (clamped, "a.bias"), (in_an_array, "a.bias")]
    refusals.check(
        (
            one.__name__,
            lambda one=one: ours(Net(one), 9),
            (ValueError, fedpart.ClientError),
            says.format(name),
        )
        for one, name in rows
    )


def test_writes_that_the_first_example_does_not_need():
    """The example that is looked at first is within the bounds, and those that follow are not."""
    x, y = data()[0] * 4, torch.tensor([2] + [0, 1] * 5 + [0])
    x[0] = 0.1
    before = x.clone()
    shards = [(torch.full((4, 6), 0.1), torch.arange(4) % 3)] * 2
    task = fedpart.Task(Net(lambda s, x: s.b(x.clamp_(-1, 1))), samples=1)
    result = fedpart.federate(task, shards, rounds=2, chunks=(1.0,), validation=(x, y), evaluate_every=1)
    assert torch.equal(x, before)
    with torch.no_grad():
        expected = F.cross_entropy(result.module()(before.clone()), y)
    assert result.metrics[-1].val_nll == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.div_(4.0),
        lambda x: x.data.div_(4.0),
        lambda x: torch.from_numpy(np.divide(x.numpy(), 4, out=x.numpy())),
        lambda x: torch.div(x, 4.0, out=x),
        lambda x: x.__setitem__(slice(None), x / 4) or x,
    ],
)
def test_writes_of_some_passes_only_change_no_data(write):
    """Neither the caller's, nor the scores."""
    net = Net(lambda s, x: s.b(write(x) if len(x) > 7 else x))
    few, (x, y) = [(torch.full((4, 6), 0.1), torch.arange(4) % 3)] * 2, data()
    before = x.clone()
    result = fedpart.federate(
        fedpart.Task(net, samples=1), few, rounds=2, chunks=(1.0,), validation=(x, y), evaluate_every=1
    )
    assert torch.equal(x, before)
    with torch.no_grad():
        expected = F.cross_entropy(result.module().b(before / 4), y)
    assert result.metrics[-1].val_nll == pytest.approx(float(expected), abs=1e-5)


def test_targets_that_a_loss_writes_to_later_stay_as_they_are():
    written = []

    def loss(outputs, targets):
        if outputs.abs().mean() > 0.5:
            written.append(targets.clamp_(max=1))
        return F.cross_entropy(outputs, targets, reduction="none")

    shards = [data()] * 2
    task = fedpart.Task(Net(lambda s, x: s.b(torch.tanh(s.a(x)))), likelihood=loss, samples=1)
    local, server = fedpart.LocalSettings(2.0, 64), fedpart.SGDSettings(1.0)
    plain = {"chunks": (1.0,), "method": "fedavg", "local": local, "server": server}
    fedpart.federate(task, shards, rounds=9, **plain)
    assert written and torch.equal(shards[0][1], data()[1])
