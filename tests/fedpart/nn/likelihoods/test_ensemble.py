"""Several networks in one: what is minimised, what is reported, and what their differences are worth."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpart import Dataset, Task, fit
from fedpart.nn.likelihoods import Classification, EnsembleClassification
from fedpart.nn.likelihoods.ensemble import calibration_error, disagreement, diversity
from fedpart.training.optimisers import SGDSettings

B, M, K = 12, 3, 4


def examples(seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(B, M, K, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, K, (B,), generator=generator)


class Members(nn.Module):
    """Linear networks side by side."""

    def __init__(self, *members):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x):
        return torch.stack([member(x) for member in self.members], 1)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.7}, {"label_smoothing": 0.2}], ids=str)
def test_the_loss_is_the_members_sum_and_the_report_their_averaged_probabilities(options):
    logits, y = examples()
    ends, one = EnsembleClassification(**options).double(), Classification(**options).double()
    outputs = ends.over_samples(logits[:, None])
    each = torch.stack([one(one.over_samples(logits[:, None, m]), y) for m in range(M)], 1)
    torch.testing.assert_close(ends.loss(outputs, y), each.sum(1))
    torch.testing.assert_close(ends(outputs, y), -(-each).exp().mean(1).log())
    assert (ends(outputs, y) <= each.mean(1)).all(), "Jensen"
    p = outputs.softmax(2).mean(1)  # smoothing leaves the order
    assert torch.equal(ends.hits(outputs, y), p.argmax(1) == y)


def test_one_member_is_classification_to_the_bit():
    logits, y = examples()
    ends, one = EnsembleClassification(), Classification()
    single = logits[:, :1].float()
    assert torch.equal(ends.loss(single, y), one(single[:, 0], y))
    assert torch.equal(ends.hits(single, y), one.hits(single[:, 0], y))


def test_diversity_in_closed_form():
    y = torch.arange(B) % K
    same = y[:, None].expand(B, 2).clone()
    same[0] += 1
    assert diversity(same, y) == disagreement(same) == 0, "equal members"
    assert diversity(y[:, None].expand(B, 2), y) == 0, "nobody is ever wrong"
    apart = torch.stack([y, (y + 1) % K], 1)
    apart[: B // 2] = apart[: B // 2].flip(1)
    assert disagreement(apart) == 1
    assert diversity(apart, y) == pytest.approx(1 / 0.5), "never of one mind, each wrong in a half"
    three = torch.stack([y, y, (y + 1) % K], 1)
    assert disagreement(three) == pytest.approx(2 / 3)
    assert diversity(three, y) == pytest.approx((2 / 3) / (1 / 3))


def test_calibration_error_of_a_constant_confidence():
    p, right = 0.7, 5
    y = torch.tensor([0] * right + [1] * (B - right))
    logits = torch.tensor([p, 1 - p]).log().expand(B, M, 2)
    found = EnsembleClassification().of_members(logits, y)
    assert found["calibration_error"] == pytest.approx(abs(p - right / B), abs=1e-6)
    assert found["diversity"] == found["diversity_over_ensemble_error"] == 0
    assert calibration_error(torch.eye(3), torch.arange(3)) == 0


def test_members_that_share_nothing_learn_as_each_would_alone():
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(40, 5, generator=generator), torch.arange(40) % K
    torch.manual_seed(0)
    layers = [nn.Linear(5, K) for _ in range(2)]
    settings = {"method": "none", "iterations": 5, "batch_size": 8, "optimiser": SGDSettings(0.3)}

    def trained(module, likelihood):
        task = Task(module, likelihood=likelihood, samples=1)
        return fit(task, Dataset(x, y), chunks=(1.0,), **settings).state

    together = trained(Members(*layers), "ensemble")
    for number, layer in enumerate(layers):
        alone = trained(layer, "classification").tensors()
        for name, value in alone.items():
            assert torch.equal(together.tensors()[f"members.{number}.{name}"], value)
    scores = together.evaluate(Dataset(x, y))
    outputs = torch.cat(list(together.predict(x)))
    p = outputs.softmax(2).mean(1)
    assert scores["nll"] == pytest.approx(F.nll_loss(p.log(), y).item(), rel=1e-5)
    assert scores["nll"] < math.log(K)
