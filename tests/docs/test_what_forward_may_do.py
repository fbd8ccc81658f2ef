"""Each row of the guide's table of what a network's forward may do, done."""

import functools
import itertools
import random

import numpy as np
import pytest
import torch
from documents import DOCS
from fuzz.either import EITHER, INPUTS, puts
from fuzz.pieces import WIDTH, Piece
from fuzz.promised import PROMISED
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedpart import ClientError, federate

MAKERS = {**PROMISED, **EITHER, **INPUTS}


def with_own(name, make, compute):
    """A piece that has an attribute."""
    return lambda: Piece(puts(name, lambda _: make()), compute)


def plain(compute):
    return lambda: Piece(lambda s: None, compute)


COUNTS = {"n": 0}


def counts_apart(s, x):
    COUNTS["n"] += 1
    return s.b(x)


def goes_backward(s, x):
    if s.b.weight.requires_grad:
        s.b(x).square().mean().backward()
    return s.b(x)


def scales(s, x):
    if s.h is None:
        s.h = x.detach().std()
    return s.b(x / s.h)


def looks(s, x):
    x = s.a(x)
    s.norm = x.norm().item()
    return s.b(x)


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand(())


def drops():
    net = plain(lambda s, x: s.b(s.act(s.a(x))))()
    net.act = lambda h: F.dropout(h, 0.5, net.training)
    return net


ROWS = {  # names of pieces of the random networks, and pieces
    "write into its inputs": ["B sub_"],
    "keep activations to look at": ["activation kept, not read"],
    "make a constant once": [
        "cache of a constant",
        with_own("h", lambda: functools.cache(torch.ones), lambda s, x: s.b(x * s.h(x.shape[1]))),
    ],
    "use a weight twice": ["tie transposed in forward"],
    "take weights from a list": ["A list of parameters", "A dict of parameters", "A closure over layers"],
    "use what `__init__` made of a weight": ["A view at the start"],
    "change a weight": ["C data = renorm", "C in place on data", "frozen changed in place"],
    "two parameters in one memory": ["tie by a slice of data"],
    "keep a state that a later pass reads": ["D attribute"],
    "count passes, `self": ["harmless counter", plain(counts_apart)],
    "move an iterator on": [
        "D iterator",
        with_own("h", lambda: itertools.repeat(1.0), lambda s, x: s.b(x) * next(s.h)),
    ],
    "change gradients": ["gradient clipped", "own autograd function"],
    "draw random numbers in these": ["gradient with noise", plain(lambda s, x: s.b(Noisy.apply(s.a(x))))],
    "count passes or change weights in these": ["gradient counted", "gradient that writes"],
    "set a scale from the first batch": [with_own("h", lambda: None, scales)],
    "keep a number to look at": [plain(looks)],
    "make a constant from a seed": [
        plain(lambda s, x: s.b(x @ torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))))
    ],
    "drop in a function": [drops],
    "change a buffer": [with_own("norm", lambda: nn.BatchNorm1d(WIDTH), lambda s, x: s.b(s.norm(x)))],
    "draw with torch's functions": [plain(lambda s, x: s.b(F.dropout(x, 0.5) * torch.rand(())))],
    "draw from NumPy": [
        plain(lambda s, x: s.b(x) * np.random.rand()),
        plain(lambda s, x: s.b(x) * random.gauss(0, 1)),
        "D NumPy generator",
    ],
    "put a hook on a weight": [
        plain(lambda s, x: (s.b.weight.requires_grad and s.b.weight.register_hook(abs), s.b(x))[1])
    ],
    "call `backward()`": [plain(goes_backward)],
    "call `torch.utils.checkpoint`": [plain(lambda s, x: s.b(checkpoint(s.a, x, use_reentrant=False)))],
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
    inputs = torch.randn(24, WIDTH, generator=torch.Generator().manual_seed(0))
    shards = [(x, (x[:, 0] > 0).long()) for x in inputs.split(6)]
    for piece in ROWS[begun]:
        net = nn.Sequential(MAKERS.get(piece, piece)(), nn.Linear(WIDTH, 2))
        train = functools.partial(federate, net, shards, rounds=2, cohort=4, chunks=(0.5, 0.5))
        if allowed:
            train()
        else:
            with pytest.raises((ValueError, ClientError), match=r"^[^\n]+$"):
                train()
