"""Why the strength of mixup is no hyperparameter here: its gradient at fixed weights lowers it.

An amount a <= 1/2 of another example, and of its target, is mixed into each example of a batch.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpart.data import load_splits


def mixed_loss(network, x, y, strength, generator):
    """Cross-entropy under mixed targets; the amounts are drawn from ``U(0, strength)``."""
    other = torch.randperm(len(x), generator=generator)
    amount = strength * torch.rand(len(x), generator=generator)
    outputs = network(x.lerp(x[other], amount.view(-1, 1, 1, 1)))
    own, others = (F.cross_entropy(outputs, of, reduction="none") for of in (y, y[other]))
    return ((1 - amount) * own + amount * others).mean()


@pytest.mark.quick(1)
@pytest.mark.parametrize("trained_with, steps", [(0.0, 300), (0.5, 30)])
def test_held_out_loss_rises_with_the_strength(trained_with, steps):
    """Under weights that were trained with mixup too, so training with it would be unlearned."""
    digits, g = load_splits("digits"), torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(steps):
        rows = torch.randint(0, 200, (64,), generator=g)
        loss = mixed_loss(network, digits.train.inputs[rows], digits.train.targets[rows], trained_with, g)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    held_out = digits.validation
    for at in (0.05, 0.2, 0.5):
        strength = torch.tensor(at, requires_grad=True)
        loss = mixed_loss(network, held_out.inputs, held_out.targets, strength, g)
        (slope,) = torch.autograd.grad(loss, strength)
        assert slope > 0


def test_the_least_loss_there_is_rises_with_the_amount():
    """No output does better on a mixed target than the entropy of the amount, which rises up to 1/2."""
    amounts = torch.linspace(0.01, 0.5, 50, dtype=torch.float64)
    targets = torch.stack([1 - amounts, amounts], 1)
    least = -(targets * targets.log()).sum(1)
    assert (least.diff() > 0).all() and least[-1].item() == pytest.approx(math.log(2))
    outputs = torch.randn(1000, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    losses = -(targets * outputs.log_softmax(-1)).sum(-1)
    assert (losses >= least).all()
