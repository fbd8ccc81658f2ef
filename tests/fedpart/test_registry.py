"""Names for things that a user may swap."""

import pytest

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


def test_a_name_is_taken_once(models):
    models.register("mnist_cnn")(dict)  # the same object again is harmless
    with pytest.raises(ValueError, match="model named 'mnist_cnn' is already registered"):
        models.register("mnist_cnn")(set)


def test_a_users_own_is_imported(models):
    assert models.resolve("collections:OrderedDict.fromkeys") is not None
    assert models.resolve("math:pi") == pytest.approx(3.14159, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mnist_cn", r"Unknown model 'mnist_cn': did you mean 'mnist_cnn'\? Known: digits_cnn, mnist_cnn\."),
        ("transformer", r"Unknown model 'transformer': Known: digits_cnn, mnist_cnn\. Your own is given as"),
        ("nowhere:net", "'nowhere:net' cannot be imported .*nowhere.*PYTHONPATH"),
        ("math:tau_tau", "cannot be imported .*tau_tau"),
    ],
)
def test_what_is_not_found(models, name, says):
    with pytest.raises(ValueError, match=says):
        models.resolve(name)


def test_nearest_names_all():
    assert nearest("xyz", ["b", "a"]) == "Known: a, b."
