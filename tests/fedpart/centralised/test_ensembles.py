"""What is told of an ensemble: every subset with its cost, and the mean over corrupted images."""

import itertools
import math

import pytest
import torch
from torch import nn

from fedpart import Dataset, Task, Training, TrainingSettings
from fedpart.centralised.ensembles import MOST, of_corrupted, of_ensemble
from fedpart.centralised.sharing import crop_similarity, learned_clusters, weight_gradients
from fedpart.nn.models import digits_cnn, wrn
from fedpart.nn.models.ensembles import Ensemble, Mimo, batch_ensemble, slimmable
from fedpart.partition.sharing.bank import Bank

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


def residual_networks(*sizes):
    torch.manual_seed(0)
    return [wrn(3, (1, 8, 8), depth, width) for depth, width in sizes]


@pytest.fixture(scope="module")
def mixed():
    """Two widths and another depth that share banks and coefficients by depth."""
    bank = Bank(clusters="depth", coupled=True)
    return state_of(Ensemble(bank.compose(residual_networks((10, 2), (10, 1), (16, 1)))))


def test_gradients_are_those_of_the_plain_network(mixed):
    found = weight_gradients(mixed, DATA)
    for index, member in enumerate(mixed.module().members):
        plain = member.plain()
        outputs = plain(DATA.inputs)
        nn.functional.cross_entropy(outputs, DATA.targets, reduction="sum").backward()
        for name in member.recipes:
            torch.testing.assert_close(found[index, name], plain.get_submodule(name).weight.grad)
    assert len(found) == 10 + 9 + 15, "all convolutions: the second width has a shortcut less"


def test_thresholds_at_the_ends(mixed):
    alone, bins = learned_clusters(mixed, DATA, 1.0), learned_clusters(mixed, DATA, -1.01)
    assert len(alone) == 10 and len(bins) < 10
    names = sorted(f"{i}:{n}" for i, n in weight_gradients(mixed, DATA))
    for groups in (alone, bins):
        assert sorted(name for group in groups for name in group) == names
    assert all(sum(name.startswith("0:") for name in group) == 1 for group in alone)


def test_another_depth_joins_what_is_most_similar_and_another_width_its_namesake():
    bank = Bank(clusters="depth", coupled=True)
    state = state_of(Ensemble(bank.compose(residual_networks((16, 2), (16, 1.5), (10, 1)))))
    whose = {name: n for n, group in enumerate(learned_clusters(state, DATA, 1.0)) for name in group}
    gradients = weight_gradients(state, DATA)
    for name in state.module().members[1].recipes:
        assert whose[f"1:{name}"] == whose[f"0:{name}"]
    recipes = [member.recipes for member in state.module().members]
    for name, recipe in recipes[2].items():
        near = [other for other, one in recipes[0].items() if one.banks[0] == recipe.banks[0]]
        cosines = [crop_similarity(gradients[2, name], gradients[0, other]) for other in near]
        assert whose[f"2:{name}"] == whose[f"0:{near[cosines.index(max(cosines))]}"]
