"""Averages over samples by hand, and several networks in one likelihood."""

import math

import pytest
import torch
from problems import Shift
from torch import nn
from torch.nn import functional as F

from fedpart import Batch, Dataset, ParameterSpace, Task, fit
from fedpart.nn.likelihoods import Classification, EnsembleClassification
from fedpart.nn.likelihoods.base import AVERAGES, average_samples
from fedpart.nn.likelihoods.ensemble import calibration_error, disagreement, diversity
from fedpart.nn.models.ensembles import Ensemble
from fedpart.training.optimisers import SGDSettings

B, S, K = 4, 3, 5


def test_the_average_of_one_sample_is_that_sample_and_no_part_of_it():
    """To the bit, rows one after the other; a likelihood may write to it."""
    outputs = torch.randn(K, B).T.unsqueeze(1)  # columns lie one after the other
    found = average_samples(outputs, "logits")
    assert torch.equal(found, outputs[:, 0]) and found.is_contiguous()
    assert found.data_ptr() != outputs.data_ptr()
    one, other = (average_samples(outputs, how) for how in ("probabilities", "log_probabilities"))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("average", AVERAGES)
def test_average_over_samples(average):
    """Of every row with noise of its own, as a loop over rows computes it."""
    torch.manual_seed(0)
    task = Task(nn.Linear(6, K), transforms=[Shift(0.7)], samples=S, average=average)
    space = task.parameter_space(1)
    w, psi = space.tensors(space.initial()), task.psi_space.initial()
    x, y = torch.randn(B, 6), torch.tensor([0, 3, 4, 1])
    torch.manual_seed(7)
    noise = torch.rand(B * S, 6).view(B, S, 6)  # what the loss will draw without explicit noise
    logits = torch.stack([(x[b] + 0.7 * noise[b]) @ w["weight"].T + w["bias"] for b in range(B)])
    averaged = {
        "logits": logits.mean(1).log_softmax(-1),
        "log_probabilities": logits.log_softmax(-1).mean(1),
        "probabilities": logits.softmax(-1).mean(1).log(),
    }
    torch.manual_seed(7)
    found = task.loss(w, psi, Batch(x, y), None)
    torch.testing.assert_close(found, F.nll_loss(averaged[average], y), rtol=1e-5, atol=1e-6)


def poisson(outputs, targets):
    return (outputs.exp() - targets[:, None] * outputs)[:, 0]


def loss_with(likelihood):
    task = Task(nn.Linear(3, 1), likelihood=likelihood, samples=2)
    space = ParameterSpace(nn.Linear(3, 1))
    batch = Batch(torch.ones(B, 3), torch.arange(B))
    return task, task.loss(space.tensors(torch.zeros(space.size)), torch.zeros(0), batch, None)


def test_own_likelihood_keeps_its_identity():
    """A callable that happens to bear a known name is neither replaced nor taken for a classification."""
    task, loss = loss_with(poisson)
    assert loss.item() == pytest.approx(1.0)
    assert task.replace(samples=1).likelihood(torch.zeros(B, 1), torch.zeros(B)).tolist() == [1.0] * B

    def classification(outputs, targets):
        return poisson(outputs, targets) + 5

    task = Task(nn.Linear(3, 1), likelihood=classification)
    assert task.likelihood_name != "classification"
    assert task.plain().likelihood(torch.zeros(B, 1), torch.zeros(B)).tolist() == [6.0] * B


N, MEMBERS, CLASSES = 12, 3, 4


def examples(seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(N, MEMBERS, CLASSES, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, CLASSES, (N,), generator=generator)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.7}, {"label_smoothing": 0.2}], ids=str)
def test_the_loss_is_the_members_sum_and_the_report_their_averaged_probabilities(options):
    logits, y = examples()
    ends, one = EnsembleClassification(**options).double(), Classification(**options).double()
    outputs = ends.over_samples(logits[:, None])
    each = torch.stack([one(one.over_samples(logits[:, None, m]), y) for m in range(MEMBERS)], 1)
    torch.testing.assert_close(ends.loss(outputs, y), each.sum(1))
    torch.testing.assert_close(ends(outputs, y), -(-each).exp().mean(1).log())
    assert (ends(outputs, y) <= each.mean(1)).all(), "Jensen"
    p = outputs.softmax(2).mean(1)  # smoothing leaves the order
    assert torch.equal(ends.hits(outputs, y), p.argmax(1) == y)
    single = logits[:, :1]
    assert torch.equal(ends.loss(single, y), one(single[:, 0], y)), "one member is classification to the bit"


def test_diversity_and_calibration_error_in_closed_form():
    y = torch.arange(N) % CLASSES
    same = y[:, None].expand(N, 2).clone()
    same[0] += 1
    assert diversity(same, y) == disagreement(same) == 0, "equal members"
    assert diversity(y[:, None].expand(N, 2), y) == 0, "nobody is ever wrong"
    apart = torch.stack([y, (y + 1) % CLASSES], 1)
    apart[: N // 2] = apart[: N // 2].flip(1)
    assert disagreement(apart) == 1
    assert diversity(apart, y) == pytest.approx(1 / 0.5), "never of one mind, each wrong in a half"
    three = torch.stack([y, y, (y + 1) % CLASSES], 1)
    assert disagreement(three) == pytest.approx(2 / 3)
    assert diversity(three, y) == pytest.approx((2 / 3) / (1 / 3))
    p, right = 0.7, 5
    y = torch.tensor([0] * right + [1] * (N - right))
    logits = torch.tensor([p, 1 - p]).log().expand(N, MEMBERS, 2)
    found = EnsembleClassification().of_members(logits, y)
    assert found["calibration_error"] == pytest.approx(abs(p - right / N), abs=1e-6)
    assert found["diversity"] == found["diversity_over_ensemble_error"] == 0
    assert calibration_error(torch.eye(3), torch.arange(3)) == 0


def test_members_that_share_nothing_learn_as_each_would_alone():
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(40, 5, generator=generator), torch.arange(40) % CLASSES
    torch.manual_seed(0)
    layers = [nn.Linear(5, CLASSES) for _ in range(2)]
    settings = {"method": "none", "iterations": 5, "batch_size": 8, "optimiser": SGDSettings(0.3)}

    def trained(module, likelihood):
        task = Task(module, likelihood=likelihood, samples=1)
        return fit(task, Dataset(x, y), chunks=(1.0,), **settings).state

    together = trained(Ensemble(layers), "ensemble")
    for number, layer in enumerate(layers):
        alone = trained(layer, "classification").tensors()
        for name, value in alone.items():
            assert torch.equal(together.tensors()[f"members.{number}.{name}"], value)
    scores = together.evaluate(Dataset(x, y))
    outputs = torch.cat(list(together.predict(x)))
    p = outputs.softmax(2).mean(1)
    assert scores["nll"] == pytest.approx(F.nll_loss(p.log(), y).item(), rel=1e-5)
    assert scores["nll"] < math.log(CLASSES)
