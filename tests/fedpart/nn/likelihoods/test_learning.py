"""L_ML finds the noise of data: errors on examples that the weights have not seen, and not on their own."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpart import AdamSettings, Task, fit
from fedpart.nn.likelihoods import Classification, Gaussian

SETTINGS = {
    "batch_size": 400,
    "iterations": 800,
    "optimiser": AdamSettings(1e-2),
    "optimiser_psi": AdamSettings(1e-2),
    "schedule": "cosine",
}
FASTER = {"optimiser": AdamSettings(1e-1)}


def zeros(inputs, outputs):
    """A linear network whose weights begin at 0, so that untrained ones do nothing."""
    net = nn.Linear(inputs, outputs, bias=False)
    nn.init.zeros_(net.weight)
    return net


def squared_error(state, k, data):
    """Mean over the data, of subnetwork k."""
    x, y = data
    with torch.no_grad():
        found = state.task.outputs(state.tensors(k), state.psi, x, None, dropout=False)
    return (found - y).square().mean().item()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_variance_is_that_of_errors_on_unseen_examples(seed):
    """Targets are noise, and p weights fit a share of it; n squares have a standard error of sqrt(2 / n)."""
    noise, size, inputs = 0.25, 1000, 800
    g = torch.Generator().manual_seed(seed)
    first, second, fresh = [
        (torch.randn(n, inputs, generator=g), noise**0.5 * torch.randn(n, 1, generator=g))
        for n in (size, size, 10 * size)
    ]
    task = Task(zeros(inputs, 1), likelihood=Gaussian(1.0, learned=True), samples=1)
    state = fit(task, [first, second], seed=seed, **SETTINGS).state
    learned, p = state.psi.exp().item(), inputs / 2
    own, unseen = squared_error(state, 1, first), squared_error(state, 1, second)
    assert own < noise * (1 - 3 * math.sqrt(2 / (size - p))), "training errors underestimate the noise"
    assert noise < learned == pytest.approx(unseen, rel=4 * math.sqrt(2 / size))

    def cost(variance):
        return 0.5 * (squared_error(state, 1, fresh) / variance + math.log(variance))

    assert cost(learned) < cost(own)


@pytest.mark.parametrize("seed", [0, 1])
def test_label_smoothing_is_the_share_of_random_labels(seed):
    """A share of n labels has a standard error of sqrt(e (1 - e) / n) around e.

    It begins too large: begun from 0.05, it had not arrived after these steps on every seed.
    """
    share, size, classes, copies = 0.3, 1500, 3, 8
    g = torch.Generator().manual_seed(seed)
    true = torch.randint(0, classes, (2 * size,), generator=g)
    x = F.one_hot(true, classes).float().repeat(1, copies)
    x = x + 0.3 * torch.randn(x.shape, generator=g)
    random = torch.rand(2 * size, generator=g) < share
    y = torch.where(random, torch.randint(0, classes, (2 * size,), generator=g), true)
    task = Task(zeros(classes * copies, classes), likelihood=Classification(label_smoothing=0.5), samples=1)
    chunks = [(x[:size], y[:size]), (x[size:], y[size:])]
    state = fit(task, chunks, seed=seed, **SETTINGS | FASTER).state
    error = math.sqrt(share * (1 - share) / size)
    assert torch.sigmoid(state.psi).item() == pytest.approx(share, abs=4 * error)
