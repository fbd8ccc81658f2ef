"""What a first pass does not show by itself: states that no attribute holds, changes that come later."""

import functools
import os
import random
import time

import numpy as np
import pytest
import torch
from looked import CHANGES, LOST, Net, check, data, ours, plainly
from torch import nn
from torch.nn import functional as F

import fedpart

SCALE = None
SCALES = {}
MASKS = {}


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


class Counter(nn.Module):
    n = 0

    def forward(self):
        self.n += 1
        return self.n


class Counting(Net):
    passes = 0

    def forward(self, x):
        Counting.passes += 1
        return self.b(x) / Counting.passes


@functools.cache
def cell():
    return [0]


def in_slots(net, x):
    net.o.n += 1
    return net.b(x) / net.o.n


def in_a_cache(net, x):
    cell()[0] += 1
    return net.b(x) / cell()[0]


def by_default(net, x, kept=[]):  # noqa: B006
    kept.append(x.mean().item())
    return net.b(x) + sum(kept)


def deep(net, x):
    net.m[0][0][0][0][0] += 1
    return net.b(x) / net.m[0][0][0][0][0]


def scaled_by_a_name(net, x):
    global SCALE
    if SCALE is None:
        SCALE = x.std()
    return net.b(x / SCALE)


def scaled_by_a_part(net, x):
    if "x" not in SCALES:
        SCALES["x"] = x.std()
    return net.b(x / SCALES["x"])


def scaled_inside():
    kept = {}

    def forward(net, x):
        if not kept:
            kept["x"] = x.std()
        return net.b(x / kept["x"])

    return forward


def scaled_by_the_class(net, x):
    if not hasattr(Counting, "scale"):
        Counting.scale = x.std()
    return net.b(x / Counting.scale)


def masked(net, x):
    if x.shape[1] not in MASKS:
        MASKS[x.shape[1]] = torch.arange(6.0) / 6
    return net.b(x * MASKS[x.shape[1]])


def test_states_wherever_they_are():
    """A name that the first pass reaches is told; others change what the next pass returns."""
    seen, unseen = "'{}' of .* " + CHANGES, "returns other numbers when it computes again .*draw"
    check(
        [
            (Net(in_slots, o=Slotted()), seen.format("o")),
            (Net(by_default), seen.format("call")),
            (Net(lambda s, x: s.b(x) / s.m[0](), m=[Counter()]), seen.format("m")),
            (Counting(None), seen.format("passes")),
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
    )
    assert torch.isfinite(ours(Net(masked))["b.weight"]).all() and 6 in MASKS, "a cache in a name is taken"


def changing(change, later=True):
    """A forward that changes its first layer's weight, if need be when training has moved it."""

    def forward(net, x):
        if not later or abs(net.a.weight.norm() - 1.3994) > 1e-3:  # it begins there
            change(net.a.weight)
        return plainly(net, x)

    return forward


def assigned(weight):
    weight.data = weight.data * 0.9


def by_numpy(weight):
    np.multiply(weight.detach().numpy(), 0.9, out=weight.detach().numpy())


def turned(weight):
    """The sum of the weights stays."""
    weight.data.copy_(weight.data.flip(0))


def in_an_array(net, x):
    net.a.bias.detach().numpy()[::-1].sort()
    return plainly(net, x)


def clamped(net, x):
    """One that changes no number, of a weight in the middle of the memory that all have in common."""
    net.a.bias.data.clamp_(-9, 9)
    return plainly(net, x)


def test_weights_that_are_changed_later_and_their_names():
    late = [assigned, lambda weight: weight.data.mul_(0.9), by_numpy, turned]
    rows = [(Net(changing(change)), "a.weight") for change in late]
    rows.append((Net(changing(turned, later=False)), "a.weight"))
    rows += [(Net(clamped), "a.bias"), (Net(in_an_array), "a.bias")]
    check(((net, LOST.format(name)) for net, name in rows), rounds=9)


FEW = [(torch.full((4, 6), 0.1), torch.arange(4) % 3)] * 2


def assert_scored_as(net, x, y, expected):
    """A run on few examples leaves ``x`` alone, and scores it as ``expected`` of the trained module says."""
    before, task = x.clone(), fedpart.Task(net, samples=1)
    options = {"chunks": (1.0,), "validation": (x, y), "evaluate_every": 1}
    result = fedpart.federate(task, FEW, rounds=2, **options)
    assert torch.equal(x, before)
    with torch.no_grad():
        nll = F.cross_entropy(expected(result.module(), before.clone()), y)
    assert result.metrics[-1].val_nll == pytest.approx(float(nll), abs=1e-5)


def test_writes_that_the_first_example_does_not_need():
    """The example that is looked at first is within the bounds, and those that follow are not."""
    x, y = data()[0][0] * 4, torch.tensor([2] + [0, 1] * 5 + [0])
    x[0] = 0.1
    assert_scored_as(Net(lambda s, x: s.b(x.clamp_(-1, 1))), x, y, lambda module, x: module(x))


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
    net = Net(lambda s, x: s.b(write(x) if len(x) > 7 else x))
    x, y = (part[0] for part in data())
    assert_scored_as(net, x, y, lambda module, x: module.b(x / 4))


def test_targets_that_a_loss_writes_to_later_stay_as_they_are():
    written = []

    def loss(outputs, targets):
        if outputs.abs().mean() > 0.5:
            written.append(targets.clamp_(max=1))
        return F.cross_entropy(outputs, targets, reduction="none")

    task = fedpart.Task(Net(plainly), likelihood=loss, samples=1)
    local, server = fedpart.LocalSettings(2.0, 64), fedpart.SGDSettings(1.0)
    shards = [*zip(*data(), strict=True)]
    fedpart.federate(task, shards, rounds=9, chunks=(1.0,), method="fedavg", local=local, server=server)
    assert written and torch.equal(shards[0][1], data()[1][0])
