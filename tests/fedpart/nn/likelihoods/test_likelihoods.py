"""Likelihoods and the average over augmentation samples against hand computation."""

import math

import pytest
import torch
from torch import nn

from fedpart import Batch, HyperModule, ParameterSpace, Task, uniform
from fedpart.nn.likelihoods import Gaussian
from fedpart.nn.likelihoods.base import average_samples

B, S, K = 4, 3, 5


class Jitter(HyperModule):
    """Adds noise of learned size to every row."""

    hyperparameters = ("size",)

    def __init__(self):
        super().__init__()
        self.size = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return x + self.size * (uniform(x.shape, like=x) - 0.5)


def task_and_logits(average):
    """A task, its loss's arguments, and the logits of every sample in a loop over rows."""
    torch.manual_seed(0)
    task = Task(nn.Linear(6, K), transforms=[Jitter()], samples=S, average=average)
    space = task.parameter_space(1)
    w, psi = space.tensors(space.initial()), task.psi_space.initial()
    x, y = torch.randn(B, 6), torch.tensor([0, 3, 4, 1])
    torch.manual_seed(7)
    noise = torch.rand(B * S, 6).view(B, S, 6)  # what the loss will draw without explicit noise
    logits = torch.stack([(x[b] + 0.7 * (noise[b] - 0.5)) @ w["weight"].T + w["bias"] for b in range(B)])
    torch.manual_seed(7)
    return task, (w, psi, Batch(x, y), None), logits, y


def by_hand(logits, y, average):
    p = logits.softmax(-1)
    rows = []
    for b in range(B):
        if average == "logits":
            rows.append(-logits[b].mean(0).log_softmax(-1)[y[b]])
        elif average == "log_probabilities":
            rows.append(-sum(math.log(p[b, s, y[b]]) for s in range(S)) / S)
        else:
            rows.append(-math.log(sum(p[b, s, y[b]].item() for s in range(S)) / S))
    return torch.tensor([float(r) for r in rows]).mean()


def test_the_average_of_one_sample_is_that_sample_and_no_part_of_it():
    """To the bit, rows one after the other; a likelihood may write to it."""
    outputs = torch.randn(K, B).T.unsqueeze(1)  # columns lie one after the other
    found = average_samples(outputs, "logits")
    assert torch.equal(found, outputs[:, 0]) and found.is_contiguous()
    assert found.data_ptr() != outputs.data_ptr()


@pytest.mark.parametrize("average", ["logits", "log_probabilities", "probabilities"])
def test_average_over_samples(average):
    task, arguments, logits, y = task_and_logits(average)
    torch.testing.assert_close(task.loss(*arguments), by_hand(logits, y, average), rtol=1e-5, atol=1e-6)


def test_the_three_averages_differ_and_are_ordered():
    values = {}
    for average in ("logits", "log_probabilities", "probabilities"):
        task, arguments, _, _ = task_and_logits(average)
        values[average] = task.loss(*arguments).item()
    # Jensen: the mean of log-probabilities bounds the log of the mean; normalised, it is the mean of logits.
    assert values["log_probabilities"] > values["probabilities"] + 1e-4
    assert values["log_probabilities"] > values["logits"] + 1e-4
    assert abs(values["logits"] - values["probabilities"]) > 1e-4


def test_outputs_are_averaged_in_the_named_way():
    outputs = torch.randn(B, S, K)
    torch.testing.assert_close(average_samples(outputs, "logits"), outputs.mean(1))
    p = outputs.softmax(-1)
    torch.testing.assert_close(average_samples(outputs, "probabilities").exp(), p.mean(1))
    torch.testing.assert_close(average_samples(outputs, "log_probabilities"), p.log().mean(1))
    torch.testing.assert_close(
        average_samples(outputs[:, :1], "probabilities"), average_samples(outputs[:, :1], "log_probabilities")
    )


@pytest.mark.parametrize("shapes", [((B, 2), (B, 2)), ((B, 1), (B,)), ((B,), (B,)), ((B,), (B, 1))])
def test_gaussian(shapes):
    outputs, targets = torch.randn(shapes[0]), torch.randn(shapes[1])
    normal = torch.distributions.Normal(outputs, 1.0)
    expected = -normal.log_prob(targets.reshape(outputs.shape)).reshape(B, -1).sum(1)
    torch.testing.assert_close(Gaussian()(outputs, targets), expected)


def test_gaussian_task():
    task = Task(nn.Linear(3, 1), likelihood="gaussian", samples=2)
    space = task.parameter_space(1)
    x, y = torch.randn(B, 3), torch.randn(B)
    w = space.tensors(space.initial())
    expected = 0.5 * (y - (x @ w["weight"].T + w["bias"])[:, 0]).square().mean() + 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(task.loss(w, task.psi_space.initial(), Batch(x, y), None), expected)


def poisson(outputs, targets):
    return (outputs.exp() - targets[:, None] * outputs)[:, 0]


def loss_with(likelihood):
    task = Task(nn.Linear(3, 1), likelihood=likelihood, samples=2)
    space = ParameterSpace(nn.Linear(3, 1))
    batch = Batch(torch.ones(B, 3), torch.arange(B))
    return task, task.loss(space.tensors(torch.zeros(space.size)), torch.zeros(0), batch, None)


def test_own_likelihood():
    task, loss = loss_with(poisson)
    assert loss.item() == pytest.approx(1.0)
    assert task.replace(samples=1).likelihood(torch.zeros(B, 1), torch.zeros(B)).tolist() == [1.0] * B


def test_own_likelihood_keeps_its_identity():
    """A callable that happens to bear a known name is neither replaced nor taken for a classification."""

    def classification(outputs, targets):
        return poisson(outputs, targets) + 5

    task = Task(nn.Linear(3, 1), likelihood=classification)
    assert task.likelihood_name != "classification"
    assert task.plain().likelihood(torch.zeros(B, 1), torch.zeros(B)).tolist() == [6.0] * B
