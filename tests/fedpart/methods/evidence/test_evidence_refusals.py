"""What has no evidence: networks, data and prior precisions."""

import math
from functools import partial

import refusals
import torch
from evidences import draws, five_inputs, of_five_inputs, weights
from torch import nn

from fedpart import Batch, ConcreteMask, Dataset, FixedMask, Task
from fedpart.methods.evidence import kfac
from fedpart.methods.evidence.kfac import Kfac
from fedpart.methods.evidence.laplace import diagonal_laplace, optimal_precision
from fedpart.methods.evidence.last_layer import LastLayer


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, x):
        x = x.flatten(2)
        return self.inner(x, x, x, need_weights=False)[0].flatten(1)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(self.layer(x))


def total(kind, net, *shape):
    task = Task(net, samples=1, precision="fp64")
    batch = Batch(torch.ones(3, *shape).double(), torch.tensor([0, 1, 0]))
    return partial(kind(task).total, weights(task), task.psi_space.initial(), draws(batch))


def convolved(*layers, **options):
    return nn.Sequential(nn.Conv2d(2, 2, 1, **options), *layers, nn.Linear(8, 3))


def test_networks_without_factors(monkeypatch):
    net, flat = nn.Sequential(nn.Flatten(), nn.Linear(2, 2)), nn.Flatten()
    averaged = Task(net, average="probabilities")
    ends = nn.Sequential(nn.Conv2d(1, 3, 2), flat)
    rows = [
        (lambda: Kfac(averaged), "of averaged logits, not probabilities; set average: logits"),
        (lambda: Kfac(Task(nn.LayerNorm(3))), "and the network trains none of these; use"),
        (total(Kfac, Twice(), 2), "layer is used more than once in a pass"),
        (total(Kfac, convolved(flat, groups=2), 2, 2, 2), "convolutions in one group"),
        (total(Kfac, convolved(flat, padding="same"), 2, 2, 2), "padding is a number"),
        (total(Kfac, convolved(Attention()), 2, 2, 2), "out_proj is not called as a module of its own"),
        (total(LastLayer, ends, 1, 2, 2), "in a linear layer of one vector an example; use evidence: kfac"),
    ]
    refusals.check((says, call, says) for call, says in rows)
    monkeypatch.setattr(kfac, "LARGEST", 5)
    says = "networks of up to 5 weights, and this one has 6; use a smaller one"
    refusals.check([("a large network", lambda: Kfac(Task(net)), says)])


def test_what_has_no_diagonal_laplace():
    data, linear = five_inputs(), of_five_inputs()
    evidence = partial(diagonal_laplace, linear, data)
    precisions = [0, -1.0, math.nan, math.inf, "optimal"]
    regression = Dataset(data.inputs, data.targets.float())
    random, fixed = nn.Sequential(ConcreteMask(5), linear), FixedMask(5, 2)
    no_weights = "over weights, but the module has none to train"
    no_labels = "of a classifier; give examples with class labels"
    no_optimum = "prior precision has no optimum"
    positive = "precision is a positive number or 'optimised', got "
    rows = [(f"a precision of {p}", partial(evidence, p), positive) for p in precisions]
    curvature = torch.tensor([1e9, 1e9, 0.0])
    rows += [
        ("random outputs", lambda: diagonal_laplace(random, data, 1.0), "outputs are random in eval"),
        ("no weights", lambda: diagonal_laplace(fixed, data, 1.0), no_weights),
        ("a regression", lambda: diagonal_laplace(linear, regression, 1.0), no_labels),
        ("no data", lambda: diagonal_laplace(linear, data.subset([]), 1.0), no_labels),
        ("empty batches", lambda: evidence(1.0, batch_size=0), "batch size must be at least 1, got 0"),
        ("no weights to find it from", lambda: optimal_precision(curvature.double(), 0.0), no_optimum),
        ("no curvature to find it from", lambda: optimal_precision(torch.zeros(3), 1.0), no_optimum),
    ]
    refusals.check((*row, ValueError, says) for *row, says in rows)
