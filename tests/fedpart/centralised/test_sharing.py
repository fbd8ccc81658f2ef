"""Clusters learned from gradients, and that a bank can be made of what is found."""

import pytest
import torch
from torch import nn

from fedpart import Dataset, Task, Training, TrainingSettings, fit
from fedpart.centralised.sharing import learned_clusters, weight_gradients
from fedpart.nn.models import wrn
from fedpart.nn.models.ensembles import Ensemble
from fedpart.partition.sharing.bank import Bank
from fedpart.partition.sharing.learned import crop_similarity

DATA = Dataset(torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3)


def networks(*sizes):
    torch.manual_seed(0)
    return [wrn(3, (1, 8, 8), depth, width) for depth, width in sizes]


def state_of(members):
    task = Task(Ensemble(members), likelihood="ensemble", samples=1)
    return Training(task, DATA, TrainingSettings(method="none", chunks=(1.0,)))


@pytest.fixture(scope="module")
def mixed():
    """Two widths and another depth that share banks and coefficients by depth."""
    bank = Bank(clusters="depth", coupled=True)
    return state_of(bank.compose(networks((10, 2), (10, 1), (16, 1))))


def layers_of(groups):
    return [name for group in groups for name in group]


def test_gradients_are_those_of_the_plain_network(mixed):
    found = weight_gradients(mixed, DATA)
    for index, member in enumerate(mixed.module().members):
        plain = member.plain()
        nn.functional.cross_entropy(plain(DATA.inputs), DATA.targets, reduction="sum").backward()
        for name in member.recipes:
            torch.testing.assert_close(found[index, name], plain.get_submodule(name).weight.grad)
    assert len(found) == 10 + 9 + 15, "all convolutions: the second width has a shortcut less"


def test_thresholds_at_the_ends(mixed):
    alone, bins = learned_clusters(mixed, DATA, 1.0), learned_clusters(mixed, DATA, -1.01)
    assert len(alone) == 10 and len(bins) < 10
    for groups in (alone, bins):
        assert sorted(layers_of(groups)) == sorted(f"{i}:{n}" for i, n in weight_gradients(mixed, DATA))
    assert all(sum(name.startswith("0:") for name in group) == 1 for group in alone)


def test_another_depth_joins_what_is_most_similar_and_another_width_its_namesake():
    bank = Bank(clusters="depth", coupled=True)
    state = state_of(bank.compose(networks((16, 2), (16, 1.5), (10, 1))))
    whose = {name: n for n, group in enumerate(learned_clusters(state, DATA, 1.0)) for name in group}
    gradients = weight_gradients(state, DATA)
    for name in state.module().members[1].recipes:
        assert whose[f"1:{name}"] == whose[f"0:{name}"]
    recipes = [member.recipes for member in state.module().members]
    for name, recipe in recipes[2].items():
        near = [other for other, one in recipes[0].items() if one.banks[0] == recipe.banks[0]]
        cosines = [crop_similarity(gradients[2, name], gradients[0, other]) for other in near]
        assert whose[f"2:{name}"] == whose[f"0:{near[cosines.index(max(cosines))]}"]


def test_what_is_found_trains(mixed):
    members = Bank(clusters=learned_clusters(mixed, DATA)).compose(networks((10, 2), (10, 1), (16, 1)))
    task = Task(Ensemble(members), likelihood="ensemble", samples=1)
    result = fit(task, DATA, method="none", chunks=(1.0,), iterations=1, batch_size=8)
    assert result.predict(DATA.inputs).shape == (24, 3, 3)


def test_later_chunks_decide_nothing_about_what_is_shared():
    bank = Bank(clusters="depth", coupled=True)
    task = Task(Ensemble(bank.compose(networks((10, 1), (10, 1)))), likelihood="ensemble", samples=1)
    state = Training(task, DATA, TrainingSettings(method="partitioned", chunks=(0.5, 0.5)))
    before = weight_gradients(state, DATA), weight_gradients(state, DATA, k=2)
    state.w[state.partition.slice(2)] += 0.5
    after = weight_gradients(state, DATA), weight_gradients(state, DATA, k=2)
    for first, then, same in zip(before, after, (True, False), strict=True):
        assert all(torch.equal(first[layer], then[layer]) for layer in first) == same


def test_what_is_learned_has_every_layer():
    """A shallow member has a shortcut in a quarter where the deep one has none."""
    state = state_of(Bank(clusters="depth", coupled=True).compose(networks((16, 1), (10, 1))))
    clusters = learned_clusters(state, DATA, -1.01)
    assert sorted(layers_of(clusters)) == sorted(f"{i}:{name}" for i, name in weight_gradients(state, DATA))
