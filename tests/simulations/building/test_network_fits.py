"""A network that does not fit the data is refused before a run has a folder."""

import pytest
from tiny import tiny, tiny_training
from torch import nn

from simulations.errors import ConfigError
from simulations.running.run import run_experiment


def two(num_classes, input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 2))


def pictures(num_classes, input_shape):
    return nn.Conv2d(1, 3, 3, padding=1)


def other(num_classes, input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 10))


PLAIN = {"hyperparameters": {"affine": None, "dropout": None}, "method": "fedavg", "chunks": [1.0]}


@pytest.mark.parametrize(
    "network, wanted",
    [
        (two, r"gives outputs \[2, 2\] for inputs \[2, 1, 28, 28\], which do not fit 10 classes .* model"),
        (pictures, r"gives outputs \[2, 3, 28, 28\] for inputs \[2, 1, 28, 28\], which do not fit"),
        (other, r"The network does not take inputs \[2, 1, 28, 28\] \(.*\); change model or model_options\."),
    ],
    ids=["outputs", "shape", "inputs"],
)
def test_a_network_that_does_not_fit_is_refused_before_there_is_a_folder(tmp_path, network, wanted):
    config = tiny(**PLAIN, model=f"{__name__}:{network.__name__}", model_options={})
    with pytest.raises(ConfigError, match=wanted) as caught:
        run_experiment(config, tmp_path / "run")
    assert not (tmp_path / "run").exists() and "\n" not in str(caught.value)


def test_without_federation_too(tmp_path):
    given = {"model": f"{__name__}:other", "model_options": {}, "keep_best": False, "chunks": [1.0]}
    config = tiny_training(**given, method="none", hyperparameters={"affine": None, "dropout": None})
    with pytest.raises(ConfigError, match="The network does not take inputs"):
        run_experiment(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
