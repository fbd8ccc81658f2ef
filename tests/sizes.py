"""Clients of three sizes in three chunks, which tests share."""

import torch
from problems import CLASSES, SIZE
from torch import nn

from fedpart import ConcreteDropout

WIDTHS = (1.0, 0.6, 0.3)
SHARES = (0.3, 0.3, 0.4)
ARCHITECTURES = [
    {"share": share, "model_options": {"width": width}} for share, width in zip(SHARES, WIDTHS, strict=True)
]
TWO = [{"share": 0.5, "model_options": {"width": width}} for width in (1.0, 0.5)]
EXAMPLES = [3, 9, 6, 11, 2, 7, 5, 10, 8, 4]
CHUNKS = (0.5, 0.3, 0.2)


def net(width=1.0, dropout=True, hidden=2):
    """A network with one or two hidden layers of so many tens of units."""
    torch.manual_seed(0)
    units = round(10 * width)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(SIZE**2, units),
        nn.LayerNorm(units),
        nn.Tanh(),
        *([nn.Linear(units, units)] if hidden == 2 else []),
        *([ConcreteDropout(0.2)] if dropout else []),
        nn.Linear(units, CLASSES),
    )


def assert_same(one, other):
    """Two results have the bits of weights and psi in common."""
    assert torch.equal(one.state.w, other.state.w) and torch.equal(one.state.psi, other.state.psi)
