"""Retraining with the psi that a run has found, whatever kind of run that was."""

from pathlib import Path
from typing import Any

import pytest
from command_line import fedpart, refused
from safetensors.torch import load_file
from tiny import tiny, tiny_training
from torch import Tensor

from simulations.config.load import Config, TrainingConfig
from simulations.folders.run_directory import read_metrics, saved_config
from simulations.running.run import run_experiment

DIGITS = {
    "data": "digits",
    "model": "digits_cnn",
    "model_options": {},
    "hyperparameters": {"affine": {"initial": 0.1}},
    "iterations": 3,
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def psi_of(folder: str) -> dict[str, Tensor]:
    tensors = load_file(Path(folder) / "state.safetensors")
    return {name: tensor for name, tensor in tensors.items() if name.startswith("psi/")}


def on_digits(**changes: Any) -> TrainingConfig:
    return tiny_training(**{**DIGITS, **changes})


@pytest.mark.parametrize(
    "found",
    [
        tiny_training(keep_best=True),  # a learned mask
        on_digits(),
        on_digits(method="augerino"),  # its affine family is not the configuration's
        on_digits(method="augerino", hyperparameters={"affine": {"initial": [0.2] + [0.05] * 5}}),
        on_digits(method="validation", chunks=[0.8, 0.2]),
        tiny(rounds=1),
        tiny(rounds=1, method="augerino"),
    ],
)
def test_a_plain_network_is_trained_with_the_psi_of_any_run(found: Config) -> None:
    run_experiment(found, "found")
    result = fedpart("retrain", "found", "iterations=2", "--set", "seed=1", "--out", "again")
    assert result.exit_code == 0, result.output
    before, after = psi_of("found"), psi_of("again")
    assert before and before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.equal(after[name])
    config = saved_config("again")
    assert (config.method, config.seed, config.data_seed) == ("none", 1, found.data_seed)
    assert read_metrics("again")[0].get("lml") is None
    assert Path("again/transforms.png").is_file() == (found.data == "digits")


def test_what_has_found_no_psi_is_refused() -> None:
    run_experiment(tiny_training(iterations=2), "found")
    other = fedpart("retrain", "found", "--set", "hyperparameters.mask=null", "--out", "other")
    refused(other, "does not fit", "mask.logit is [30] there and missing here")
    Path("found/state.safetensors").write_bytes(b"torn")
    refused(fedpart("retrain", "found", "--out", "other"), "state.safetensors cannot be read")
    Path("found/state.safetensors").unlink()
    refused(fedpart("retrain", "found"), "is not finished", "fedpart train --resume found")
    refused(fedpart("retrain", "nowhere"), "holds no run")
    for config in (tiny_training(iterations=1, method="none"), tiny(rounds=1, method="fedavg")):
        run_experiment(config, config.method)
        refused(fedpart("retrain", config.method), f"its method '{config.method}' learns none")
    assert {path.name for path in Path().iterdir()} == {"found", "none", "fedavg"}
