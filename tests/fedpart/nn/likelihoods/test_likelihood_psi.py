"""The hyperparameters of likelihoods: gradients in every execution, and that L_ML finds the noise of data."""

import math

import pytest
import torch
from every_way import assert_learned_every_way
from problems import CLASSES
from torch import nn
from torch.nn import functional as F

from fedpart import AdamSettings, Task, fit
from fedpart.nn.likelihoods import LIKELIHOODS, Classification, Gaussian, Likelihood, Ordinal
from fedpart.nn.likelihoods import TokenClassification as Tokens

CATEGORICAL = {"temperature": 1.5, "label_smoothing": 0.2}
TOKENS = 4


def random(n, classes, seed, *shape):
    """Classes ``[n, *shape]``; the first three examples have the first, the last and one between."""
    found = torch.randint(0, classes, (n, *shape), generator=torch.Generator().manual_seed(seed))
    for place, label in zip(range(n), (0, classes - 1, classes // 2), strict=False):
        found[place] = label
    return found


def some_unlabelled(n, classes, seed):
    """Classes of tokens ``[n, T]``, of which some, and most of the second example, have none."""
    found = random(n, classes, seed, TOKENS)
    found[:, 1] = -100
    found[1:2, :-1] = -100
    return found


def values(n, classes, seed):
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ending_in(*outputs):
    def network(shape, classes, *first):
        torch.manual_seed(0)
        return nn.Sequential(
            *first,
            nn.Flatten(),
            nn.Linear(shape.numel(), 6),
            nn.Tanh(),
            nn.Linear(6, torch.Size(outputs).numel()),
            nn.Unflatten(1, outputs),
        )

    return network


def tagger(shape, classes, *first):
    return ending_in(TOKENS, classes)(shape, classes, *first)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "options, average",
    [
        ({"temperature": 1.5}, "logits"),
        ({"label_smoothing": 0.2}, "log_probabilities"),
        (CATEGORICAL, "probabilities"),
    ],
    ids=str,
)
def test_temperature_and_label_smoothing(options, average):
    assert_learned_every_way(targets=random, likelihood=lambda _: Classification(**options), average=average)


@pytest.mark.parametrize("shift", [False, True])
def test_tokens(shift):
    tokens = Tokens(shift, **CATEGORICAL)
    assert_learned_every_way(network=tagger, targets=some_unlabelled, likelihood=lambda _: tokens)


def test_gaussian_variance_and_ordinal_cut_points():
    gaussian = Gaussian(0.5, learned=True)
    assert_learned_every_way(network=ending_in(2), targets=values, likelihood=lambda _: gaussian)
    assert_learned_every_way(network=ending_in(1), targets=random, likelihood=Ordinal)


class StudentT(Likelihood):
    """A likelihood of one's own, as in the guide: heavy tails, whose scale is learned."""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, outputs, targets):
        noise = torch.distributions.StudentT(4.0, scale=self.log_scale.exp(), validate_args=False)
        return -noise.log_prob(targets - outputs).sum(1)


def test_one_of_ones_own():
    assert_learned_every_way(network=ending_in(2), targets=values, likelihood=lambda classes: StudentT())
    for name in ("classification", "gaussian", "multilabel", "poisson"):  # without options nothing is psi
        assert Task(nn.Linear(1, CLASSES), likelihood=LIKELIHOODS[name]()).psi_names == ()
    task = Task(nn.Linear(1, 2), likelihood=StudentT())
    assert task.psi_names == ("likelihood.log_scale",)
    assert task.likelihood_name == "own StudentT"


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
    x, y = data
    with torch.no_grad():
        found = state.task.outputs(state.tensors(k), state.psi, x, None, dropout=False)
    return (found - y).square().mean().item()


@pytest.mark.slow
def test_the_variance_is_that_of_errors_on_unseen_examples():
    """Targets are noise, and p weights fit a share of it; n squares have a standard error of sqrt(2 / n)."""
    noise, size, inputs = 0.25, 1000, 800
    g = torch.Generator().manual_seed(0)
    first, second, fresh = [
        (torch.randn(n, inputs, generator=g), noise**0.5 * torch.randn(n, 1, generator=g))
        for n in (size, size, 10 * size)
    ]
    task = Task(zeros(inputs, 1), likelihood=Gaussian(1.0, learned=True), samples=1)
    state = fit(task, [first, second], **SETTINGS).state
    learned, p = state.psi.exp().item(), inputs / 2
    own, unseen = squared_error(state, 1, first), squared_error(state, 1, second)
    assert own < noise * (1 - 3 * math.sqrt(2 / (size - p))), "training errors underestimate the noise"
    assert noise < learned == pytest.approx(unseen, rel=4 * math.sqrt(2 / size))

    def cost(variance):
        return 0.5 * (squared_error(state, 1, fresh) / variance + math.log(variance))

    assert cost(learned) < cost(own)


@pytest.mark.slow
def test_label_smoothing_is_the_share_of_random_labels():
    """A share of n labels has a standard error of sqrt(e (1 - e) / n) around e.

    It begins too large: begun from 0.05, it had not arrived after these steps on every seed.
    """
    share, size, classes, copies = 0.3, 1500, 3, 8
    g = torch.Generator().manual_seed(0)
    true = torch.randint(0, classes, (2 * size,), generator=g)
    x = F.one_hot(true, classes).float().repeat(1, copies)
    x = x + 0.3 * torch.randn(x.shape, generator=g)
    random = torch.rand(2 * size, generator=g) < share
    y = torch.where(random, torch.randint(0, classes, (2 * size,), generator=g), true)
    task = Task(zeros(classes * copies, classes), likelihood=Classification(label_smoothing=0.5), samples=1)
    chunks = [(x[:size], y[:size]), (x[size:], y[size:])]
    state = fit(task, chunks, **SETTINGS | FASTER).state
    error = math.sqrt(share * (1 - share) / size)
    assert torch.sigmoid(state.psi).item() == pytest.approx(share, abs=4 * error)
