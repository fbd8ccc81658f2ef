"""Verdicts: of two runs, and of a run and a guess."""

import pytest
import torch

from fedpart import Dataset
from simulations.results.verdicts import beside, guessed, guesses, verdict


def data(targets):
    return Dataset(torch.zeros(len(targets), 2), torch.tensor(targets))


def test_a_guess_is_the_commonest_class_or_the_mean_of_the_training_data():
    assert guesses([data([0, 1]), data([1, 1])], data([1, 0, 0, 0])) == {"accuracy": 0.25}
    found = guesses([data([0.0, 2.0]), data([4.0])], data([1.0, 5.0]))  # around 2
    assert found == {"rmse": pytest.approx(5**0.5)}
    assert guesses([data([0])], data([0]).subset([])) == {}
    assert guesses([data([[0, 1]])], data([[0, 1]])) == {}  # of labels


def test_a_lead_within_two_standard_errors_is_none():
    """Of 100 examples at a half each, and one right and one wrong, sqrt(2 * 0.25 / 102) = 7.0% is one."""
    assert verdict(0.57, 0.43, 100) == "this run is level with it (noise of 100 examples: +-14.1%)"
    assert verdict(0.58, 0.43, 100).startswith("this run is ahead of it")
    assert verdict(0.43, 0.58, 100).startswith("this run is behind it")


def test_few_answers_that_are_all_right_are_not_without_noise():
    """By 2/3 and 1/3: 2 * sqrt(2 * (2/9) / 3) = 77%."""
    assert verdict(1.0, 0.0, 1) == "this run is level with it (noise of 1 example: +-100.0%)"
    assert verdict(1.0, 1 / 3, 3).startswith("this run is level with it")
    assert verdict(1.0, 0.0, 9).startswith("this run is ahead of it")


def test_a_guess_of_numbers_is_beaten_by_more_than_the_noise_of_each_examples_errors_or_not_at_all():
    """Two standard errors of the mean difference of squared errors, over the sum of both roots."""
    targets = torch.tensor([-3.0, 3.0]).repeat(8) + torch.arange(16) / 16
    answers = targets + torch.tensor([0.5, -0.5, 0.25, 1.0]).repeat(4)
    guess = guesses([data([0.0])], Dataset(torch.zeros(16, 2), targets), answers[:, None])
    own = (targets - answers).double().square()
    apart = targets.double().square() - own
    sum_of_roots = guess["rmse"] + own.mean().sqrt().item()
    assert guess["noise"] == pytest.approx(2 * apart.std().item() / 4 / sum_of_roots, rel=1e-5)
    few = guesses([data([0.0])], Dataset(torch.zeros(9, 2), targets[:9]), answers[:9])
    assert few.keys() == {"rmse"}
    run = {"guess": {"rmse": 2.0, "noise": 0.1}, "test_examples": 16}
    assert guessed({**run, "test_rmse": 1.5}) == (
        "rmse 2 by the mean; this run has 1.5 and is ahead of it (noise of 16 examples: +-0.1)"
    )
    assert "is level with it" in guessed({**run, "test_rmse": 1.95})
    assert "is behind it" in guessed({**run, "test_rmse": 2.5})
    told = guessed({"guess": {"rmse": 2.0}, "test_rmse": 1.5, "test_examples": 9})
    assert told == "rmse 2 by the mean; this run has 1.5, too few examples to say whether that is noise"
    older = guessed({"guess": {"rmse": 2.0}, "test_rmse": 1.5, "test_examples": 16})
    assert older == "rmse 2 by the mean; this run has 1.5"


def test_a_loss_alone_has_no_verdict_and_bytes_are_told_in_any_case():
    mine = {"test_accuracy": None, "test_nll": 0.4, "test_examples": 9, "upload_bytes": 50}
    other = {"method": "fedavg", "test_nll": 0.5, "upload_bytes": 100}
    assert beside(mine, other) == (
        "fedavg, the same clients and cohorts: 0.500 nats on the same test data; 100 B sent, 2.00 times as "
        "much"
    )
    assert beside({**mine, "rates": "server x 1"}, other).startswith("fedavg, the same clients: 0.500 nats")
    assert guessed({"test_accuracy": 0.5}) == ""
