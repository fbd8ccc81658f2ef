"""The synthetic task: its distribution, its pool."""

import math

import pytest
import torch

from fedpart.data import input_selection, load_splits, random_subset

N = 40_000
FIVE_SIGMA = 5 * math.sqrt(4 / N)  # of a difference of two class means


@pytest.fixture(scope="module")
def data():
    return input_selection(N, seed=3)


def phi(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def test_informative_inputs_are_shifted_by_the_label_and_spurious_are_not(data):
    assert data.inputs.shape == (N, 30) and data.inputs.dtype == torch.float32
    assert set(data.targets.tolist()) == {0, 1}
    assert abs(data.targets.double().mean() - 0.5) < 5 * 0.5 / math.sqrt(N)
    low, high = (data.inputs[data.targets == y].double() for y in (0, 1))
    difference = high.mean(0) - low.mean(0)
    assert (difference[:15] - 1).abs().max() < FIVE_SIGMA and difference[15:].abs().max() < FIVE_SIGMA
    assert low.mean(0).abs().max() < FIVE_SIGMA


def test_the_noise_is_standard_normal_and_independent(data):
    noise = data.inputs.double()
    noise[:, :15] -= data.targets[:, None]
    covariance = torch.cov(noise.T)
    assert (covariance - torch.eye(30)).abs().max() < 5 * math.sqrt(2 / N)
    assert abs((noise.abs() < 1).double().mean() - (2 * phi(1) - 1)) < 5 * 0.5 / math.sqrt(30 * N)


@pytest.mark.parametrize("used", [5, 15, 30])
def test_accuracy_of_the_best_rule(data, used):
    """The sum of the inputs, against half of what the informative ones add: Phi(k / (2 sqrt(used)))."""
    informative = min(used, 15)
    guess = data.inputs[:, :used].sum(1) > informative / 2
    expected = phi(informative / (2 * math.sqrt(used)))
    error = 5 * math.sqrt(expected * (1 - expected) / N)
    assert abs((guess == data.targets.bool()).double().mean() - expected) < error


def test_a_function_of_the_seed_and_fewer_are_the_first_of_more(data):
    assert torch.equal(input_selection(N, seed=3).inputs, data.inputs)
    few = input_selection(100, seed=3)
    assert torch.equal(few.inputs, data.inputs[:100]) and torch.equal(few.targets, data.targets[:100])
    other = input_selection(100, seed=4)
    assert not torch.equal(other.inputs, few.inputs) and not torch.equal(other.targets, few.targets)


def test_other_numbers_of_inputs():
    data = input_selection(2000, seed=0, informative=2, spurious=0)
    assert data.inputs.shape == (2000, 2) and data.inputs[data.targets == 1].mean() > 0.8
    assert len(input_selection(0, seed=0)) == 0


def test_the_pool():
    splits = load_splits("input_selection")
    assert [len(part) for part in splits.parts().values()] == [20_000, 1_000, 10_000]
    assert splits.num_classes == 2
    everything = torch.cat([part.inputs for part in splits.parts().values()])
    assert len(everything.unique(dim=0)) == len(everything), "no example twice"
    assert torch.equal(load_splits("input_selection").test.inputs, splits.test.inputs)
    for part in splits.parts().values():
        difference = part.inputs[part.targets == 1].mean(0) - part.inputs[part.targets == 0].mean(0)
        assert (difference[:15] > 0.65).all() and (difference[15:] < 0.35).all()
    thousand = random_subset(splits.train, 1000, 0)
    assert not torch.equal(thousand.inputs, random_subset(splits.train, 1000, 1).inputs)
    own = input_selection(1000, seed=0)
    assert not (own.inputs[:, None, 20] == splits.train.inputs[None, :5000, 20]).any()
