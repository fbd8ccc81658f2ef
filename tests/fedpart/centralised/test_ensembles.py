"""What is told of an ensemble: every subset with its cost, and the mean over corrupted images."""

import itertools
import math

import pytest
import torch
from torch import nn

from fedpart import Dataset, Task, Training, TrainingSettings
from fedpart.centralised.scores import MOST, of_corrupted, of_ensemble
from fedpart.nn.models import digits_cnn
from fedpart.nn.models.ensembles import Ensemble, Mimo, batch_ensemble, slimmable

DATA = Dataset(torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(30) % 3)


def state_of(module, likelihood="ensemble"):
    task = Task(module, likelihood=likelihood, samples=1)
    return Training(task, DATA, TrainingSettings(method="none", chunks=(1.0,)))


def networks(*widths):
    return [digits_cnn(3, (1, 8, 8), dropout=None, width=width) for width in widths]


def multiply_adds(width):
    """25 k^2 per pixel of 8x8 and 4x4, and two linear layers."""
    first, second, units = (math.ceil(width * full) for full in (8, 16, 64))
    return 64 * 25 * first + 16 * 25 * first * second + 4 * second * units + units * 3


@pytest.mark.parametrize("make", [Ensemble, slimmable])
def test_every_subset_is_scored_and_its_cost_is_that_of_its_members(make):
    widths = (1.0, 0.5, 0.25)
    state = state_of(make(networks(*widths)))
    found = of_ensemble(state, DATA)
    rows = found["subsets"]
    subsets = [list(s) for n in (1, 2, 3) for s in itertools.combinations(range(3), n)]
    assert [row["members"] for row in rows] == subsets
    outputs = torch.cat(list(state.predict(DATA.inputs)))
    for row in rows:
        assert row["multiply_adds"] == sum(multiply_adds(widths[i]) for i in row["members"])
        p = outputs[:, row["members"]].softmax(2).mean(1)
        assert row["accuracy"] == pytest.approx((p.argmax(1) == DATA.targets).double().mean().item())
        assert row["nll"] == pytest.approx(nn.functional.nll_loss(p.log(), DATA.targets).item(), rel=1e-5)
    assert rows[-1]["nll"] <= sum(row["nll"] for row in rows[:3]) / 3 + 1e-6, "Jensen"
    scores = state.evaluate(DATA)
    assert {key: found[key] for key in scores} == pytest.approx(scores)
    assert found["diversity"] >= 0 and 0 <= found["calibration_error"] <= 1
    assert found["parameters"] == state.task.counts["trained"]
    each = (outputs.argmax(2) == DATA.targets[:, None]).double().mean(0)
    assert found["alone"] == pytest.approx(each.tolist())


def test_members_that_share_a_pass_cost_what_it_costs():
    network = digits_cnn(6, (2, 8, 8), dropout=None)
    rows = of_ensemble(state_of(Mimo(network, 2)), DATA)["subsets"]
    assert {row["multiply_adds"] for row in rows} == {multiply_adds(1.0) + 64 * 25 * 8 + 64 * 3}
    rows = of_ensemble(state_of(batch_ensemble(networks(0.5, 0.5))), DATA)["subsets"]
    assert [row["multiply_adds"] for row in rows] == [n * multiply_adds(0.5) for n in (1, 1, 2)]


def test_of_many_members_the_first_few_together():
    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 3) for _ in range(MOST + 1))

        def forward(self, x):
            return torch.stack([layer(x.flatten(1)) for layer in self.layers], 1)

    rows = of_ensemble(state_of(Linear()), DATA)["subsets"]
    assert [len(row["members"]) for row in rows] == [1] * (MOST + 1) + [*range(2, MOST + 2)]
    assert all(row["multiply_adds"] is None for row in rows), "it cannot compute some of its members"


def test_the_mean_over_corrupted_images():
    state = state_of(networks(0.5)[0], "classification")
    found = of_corrupted(state, DATA)
    rows = [row for own in found["by_corruption"].values() for row in own]
    assert len(rows) == 25 and found["mean"].keys() == {"accuracy", "nll", "calibration_error"}
    for key, value in found["mean"].items():
        assert value == pytest.approx(sum(row[key] for row in rows) / 25)
