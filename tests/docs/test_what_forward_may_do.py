"""Each row of the guide's table of what a network's forward may do, done."""

import functools
import itertools
import random

import numpy as np
import pytest
import torch
from documents import DOCS
from hooked import on_hidden
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedpart import ClientError, federate


class Net(nn.Module):
    def __init__(self, forward, begin):
        super().__init__()
        self.a, self.b, self.h, self.steps = nn.Linear(4, 4), nn.Linear(4, 2), None, 0
        self.w, self.call = nn.Parameter(torch.ones(4, 2)), forward
        begin(self)

    def forward(self, x):
        return self.call(self, x)


def keeps(net, x):
    net.h = net.b(net.a(x))
    return net.h


def makes(net, x):
    if net.h is None:
        net.h = torch.arange(4.0)
    return net.b(x * net.h)


def changes(net, x):
    net.w.data = net.w.data.clamp(-1, 1)
    return x @ net.w


def remembers(net, x):
    x = net.a(x) if net.h is None else net.a(x) + net.h
    net.h = x.detach().mean(0)
    return net.b(x)


def counts(net, x):
    net.steps += 1
    return net.b(x)


COUNTS = {"n": 0}


def counts_apart(net, x):
    COUNTS["n"] += 1
    return net.b(x)


def goes_backward(net, x):
    if net.b.weight.requires_grad:
        net.b(x).square().mean().backward()
    return net.b(x)


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1, 1)


class Noisy(Clipped):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand(())


def scales(net, x):
    if net.h is None:
        net.h = x.detach().std()
    return net.b(x / net.h)


def looks(net, x):
    x = net.a(x)
    net.norm = x.norm().item()
    return net.b(x)


def nothing(net):
    pass


def given(name, make):
    return lambda net: setattr(net, name, make(net))


def tied(net):
    net.a.weight.data = net.w.data.view(-1)[:1].expand(4, 4)


ROWS = {
    "write into its inputs": [(lambda s, x: s.b(x.sub_(0.5)), nothing)],
    "keep activations to look at": [(keeps, nothing)],
    "make a constant once": [
        (makes, nothing),
        (lambda s, x: s.b(x * s.h(x.shape[1])), given("h", lambda _: functools.cache(torch.ones))),
    ],
    "use a weight twice": [(lambda s, x: s.b(F.linear(s.a(x), s.a.weight.t())), nothing)],
    "take weights from a list": [
        (lambda s, x: x @ s.h[0], given("h", lambda s: [s.w])),
        (lambda s, x: x @ s.h["w"], given("h", lambda s: {"w": s.w})),
        (lambda s, x: s.h(x), given("h", lambda s: lambda x: s.b(s.a(x)))),
    ],
    "use what `__init__` made of a weight": [(lambda s, x: x @ s.h.t(), given("h", lambda s: s.w.t()))],
    "change a weight": [(changes, nothing), (lambda s, x: x @ s.w.data.clamp_(-2, 2) + s.b(x), nothing)],
    "two parameters in one memory": [(lambda s, x: s.b(s.a(x)) + x @ s.w, tied)],
    "keep a state that a later pass reads": [(remembers, nothing)],
    "count passes, `self": [(counts, nothing), (counts_apart, nothing)],
    "move an iterator on": [
        (lambda s, x: s.b(x) * next(s.h), given("h", lambda _: itertools.cycle([1.0, 2.0]))),
        (lambda s, x: s.b(x) * next(s.h), given("h", lambda _: itertools.repeat(1.0))),
    ],
    "change gradients": [
        (on_hidden(lambda _, gradient: gradient.clamp(-1, 1)), nothing),
        (lambda s, x: s.b(Clipped.apply(s.a(x))), nothing),
    ],
    "draw random numbers in these": [
        (on_hidden(lambda _, gradient: gradient * torch.rand(())), nothing),
        (lambda s, x: s.b(Noisy.apply(s.a(x))), nothing),
    ],
    "count passes or change weights in these": [
        (on_hidden(lambda _, gradient: COUNTS.update(n=COUNTS["n"] + 1)), nothing),
        (on_hidden(lambda net, _: net.b.weight.data.mul_(0.9)[:0].sum().item() or None), nothing),
    ],
    "set a scale from the first batch": [(scales, nothing)],
    "keep a number to look at": [(looks, nothing)],
    "make a constant from a seed": [
        (lambda s, x: s.b(x @ torch.randn(4, 4, generator=torch.Generator().manual_seed(0))), nothing)
    ],
    "change a buffer": [(lambda s, x: s.b(s.norm(x)), given("norm", lambda s: nn.BatchNorm1d(4)))],
    "draw with torch's functions": [(lambda s, x: s.b(F.dropout(x, 0.5) * torch.rand(())), nothing)],
    "draw from NumPy": [
        (lambda s, x: s.b(x) * np.random.rand(), nothing),
        (lambda s, x: s.b(x) * random.gauss(0, 1), nothing),
        (lambda s, x: s.b(x) * s.h.random(), given("h", lambda s: np.random.default_rng(0))),
    ],
    "put a hook on a weight": [
        (lambda s, x: (s.b.weight.requires_grad and s.b.weight.register_hook(abs), s.b(x))[1], nothing)
    ],
    "call `backward()`": [(goes_backward, nothing)],
    "call `torch.utils.checkpoint`": [(lambda s, x: s.b(checkpoint(s.a, x, use_reentrant=False)), nothing)],
}


def told():
    """Whether the guide allows it, by the beginning of a row."""
    text = (DOCS / "guides" / "your_model.md").read_text()
    table = text.partition("## What your forward may do")[2].partition("## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")][2:]
    return {row[0]: row[1].startswith("yes") for row in rows}


def test_every_row_is_here():
    rows = told()
    assert len(rows) == len(ROWS)
    assert all(any(row.startswith(begun) for row in rows) for begun in ROWS)


@pytest.mark.parametrize("begun", ROWS)
def test_a_row(begun):
    (allowed,) = (yes for row, yes in told().items() if row.startswith(begun))
    inputs = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
    shards = [(x, (x[:, 0] > 0).long()) for x in inputs.split(6)]
    for forward, begin in ROWS[begun]:

        def train(forward=forward, begin=begin):
            federate(Net(forward, begin), shards, rounds=2, cohort=4, chunks=(0.5, 0.5))

        if allowed:
            train()
        else:
            with pytest.raises((ValueError, ClientError), match=r"^[^\n]+$"):
                train()
