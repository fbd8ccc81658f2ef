"""What a piece of a random network is made of: its layers and attributes, and its forward."""

from collections.abc import Callable

import torch
from torch import nn

WIDTH = 6  # of every piece's inputs and outputs


class Piece(nn.Module):
    """Maps ``[B, WIDTH]`` to ``[B, WIDTH]``; ``start`` makes layers and attributes."""

    def __init__(self, start, compute):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        start(self)
        self.compute = compute

    def forward(self, x):
        return self.compute(self, x)


Makers = dict[str, Callable[[], nn.Module]]


def adder(makers: Makers):
    """``add(name, start)(compute)`` enters a piece by the name of its feature."""

    def add(name, start=lambda s: None):
        def enter(compute):
            assert name not in makers
            makers[name] = lambda: Piece(start, compute)
            return compute

        return enter

    return add


def parameter(*shape):
    return nn.Parameter(0.5 * torch.randn(shape))


def two_layers(s, x):
    return s.b(torch.tanh(s.a(x)))
