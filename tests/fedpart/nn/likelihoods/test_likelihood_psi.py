"""The hyperparameters of likelihoods: their gradients, and the same numbers in every execution."""

import pytest
import torch
from every_way import assert_learned_every_way
from problems import CLASSES
from torch import nn

from fedpart import Task
from fedpart.nn.likelihoods import LIKELIHOODS, Classification, Gaussian, Likelihood, Ordinal
from fedpart.nn.likelihoods import TokenClassification as Tokens
from fedpart.nn.likelihoods.base import AVERAGES

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
    """A network with these outputs in the place of classes."""

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


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("options", [{name: value} for name, value in CATEGORICAL.items()] + [CATEGORICAL])
def test_temperature_and_label_smoothing(options, average):
    assert_learned_every_way(
        targets=random, likelihood=lambda classes: Classification(**options), average=average
    )


@pytest.mark.parametrize("shift", [False, True])
def test_tokens(shift):
    assert_learned_every_way(
        network=tagger, targets=some_unlabelled, likelihood=lambda classes: Tokens(shift, **CATEGORICAL)
    )


def test_gaussian_variance():
    assert_learned_every_way(
        network=ending_in(2), targets=values, likelihood=lambda classes: Gaussian(0.5, learned=True)
    )


def test_ordinal_cut_points():
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
    task = Task(nn.Linear(1, 2), likelihood=StudentT())
    assert task.psi_names == ("likelihood.log_scale",)
    assert task.likelihood_name == "own StudentT"


@pytest.mark.parametrize("name", ["classification", "gaussian", "multilabel", "poisson"])
def test_without_options_nothing_is_a_hyperparameter(name):
    assert Task(nn.Linear(1, CLASSES), likelihood=LIKELIHOODS[name]()).psi_names == ()
