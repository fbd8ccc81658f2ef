"""Estimates of the log marginal likelihood: weights, batches with noise, finite differences."""

import torch
from problems import augmentation, chain_net, shard
from torch import nn

from fedpart import AdamSettings, Batch, Task, Training, TrainingSettings
from fedpart.data import input_selection
from fedpart.randomness.noise import NoiseKey

PSI_RATE = 0.05


def training(kind="kfac", task=None, data=None, options=None, **changes):
    """By an estimate, in epochs of four iterations; two of them are burnt in."""
    task = task or Task(chain_net(), transforms=[augmentation()], samples=2)
    method = {"evidence": kind, "burn_in": 2, "batch": 10, **(options or {})}
    known = {"method": "laplace", "method_options": method, "optimiser_psi": AdamSettings(PSI_RATE)}
    known |= {"iterations": 20, "batch_size": 10, "seed": 3, **changes}
    return Training(task, data or shard(40), TrainingSettings(**known))


def five_inputs():
    return input_selection(60, seed=0, informative=3, spurious=2)


def of_five_inputs():
    torch.manual_seed(1)
    return nn.Linear(5, 2)


def draws(batch, size=5):
    """Batches of a few examples, each with noise of its own."""

    def batches():
        for i, start in enumerate(range(0, batch.examples, size)):
            part = Batch(batch.inputs[start : start + size], batch.targets[start : start + size])
            yield part, NoiseKey(0, "evidence", (i,))

    return batches


def weights(task, scale=0.3):
    space = task.parameter_space(1)
    w = space.initial() + scale * torch.randn(space.size, dtype=torch.float64)
    return {name: value.clone().requires_grad_() for name, value in space.tensors(w).items()}


def evidence(estimate, w, psi, own, batches):
    total = estimate.total(w, psi, batches)
    return float(estimate.value(total, own).detach())


def numeric(function, at, step=1e-5):
    """Central differences of a scalar function of a vector."""
    rows = step * torch.eye(len(at), dtype=at.dtype)
    return torch.tensor(
        [(function(at + row) - function(at - row)) / (2 * step) for row in rows], dtype=at.dtype
    )
