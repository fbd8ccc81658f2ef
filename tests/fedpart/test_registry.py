"""Names for things that a user may swap."""

from functools import partial

import pytest
import refusals
import torch

from fedpart.registry import Registry, nearest


@pytest.fixture
def models():
    registry = Registry("model")
    registry.register("mnist_cnn")(dict)
    registry.register("digits_cnn")(list)
    return registry


def test_registered_names(models):
    assert models.names() == sorted(models) == ["digits_cnn", "mnist_cnn"]
    assert models.resolve("mnist_cnn") is models["mnist_cnn"] is dict
    assert len(models) == 2 and "mlp" not in models


def test_a_users_own_is_imported(models):
    assert models.resolve("refusals:check") is refusals.check
    assert models.resolve("torch:nn.Linear") is torch.nn.Linear


def test_names_that_are_taken_or_not_found(models):
    models.register("mnist_cnn")(dict)  # the same object again is harmless
    other = partial(models.register("mnist_cnn"), set)
    rows = [
        ("mnist_cn", r"Unknown model 'mnist_cn': did you mean 'mnist_cnn'\? Known: digits_cnn, mnist_cnn\."),
        ("transformer", r"Unknown model 'transformer': Known: digits_cnn, mnist_cnn\. Your own is given as"),
        ("nowhere:net", "'nowhere:net' cannot be imported .*nowhere.*PYTHONPATH"),
        ("torch:tau_tau", "cannot be imported .*tau_tau"),
    ]
    refusals.check((name, partial(models.resolve, name), ValueError, says) for name, says in rows)
    refusals.check([("taken", other, ValueError, "model named 'mnist_cnn' is already registered")])


def test_nearest_names_all():
    assert nearest("xyz", ["b", "a"]) == "Known: a, b."
