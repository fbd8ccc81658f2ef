"""Configurations of centralised training: what they refuse, and whose command they are for."""

import inspect
from pathlib import Path

import pytest

from fedpart import AdamSettings, AdamWSettings, ConcreteMask, SGDSettings
from simulations.config.load import ConfigError, ExperimentConfig, TrainingConfig, load_config
from simulations.config.sections import MaskSection


def refusal(tmp_path: Path, text: str, kind: type = TrainingConfig) -> str:
    path = tmp_path / "my.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, kind=kind)
    message = str(caught.value)
    assert "\n" not in message
    assert "my.yaml" in message
    return message


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("optimizer: {name: adam}", ["'optimizer'", "did you mean 'optimiser'?"]),
        ("optimiser: {name: adm}", ["optimiser.name", "'adam', 'adamw' or 'sgd'"]),
        ("optimiser: {name: adam, momentum: 0.9}", ["adam has no momentum"]),
        ("optimiser: {name: sgd, eps: 1e-5}", ["sgd has no eps"]),
        ("schedule: cosine", ["schedule", "section"]),
        ("schedule: {shape: linear}", ["'constant' or 'cosine'"]),
        ("learning_rate: 1", ["optimiser.learning_rate", "optimiser_psi.learning_rate"]),
        ("iterations: 0", ["iterations cannot be 0"]),
        ("chunks: [0.5, 0.6]", ["chunk proportions must sum to 1"]),
        ("chunks: [0.5, 0.5]\nparameters: [0.2, 0.3, 0.5]", ["2 chunk proportions but 3 parameter"]),
        ("method: fedavg", ["'fedavg' is for federated", "fedpart run", "none", "fedpart train"]),
        ("hyperparameters: {mask: {keep: 3}}", ["mask.keep", "did you mean 'kept'?"]),
        ("select: {values: []}", ["select.values"]),
        ("rounds: 3", ["'rounds' is a key of federated experiments", "use fedpart run"]),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_sentence(
    tmp_path: Path, text: str, wanted: list[str]
) -> None:
    message = refusal(tmp_path, text)
    for part in wanted:
        assert part in message, message


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("iterations: 3", ["'iterations' is a key of centralised training", "use fedpart train"]),
        ("optimiser: {}", ["use fedpart train"]),
        ("batch_size: 3", ["did you mean 'local.batch_size'?"]),  # no key of its own, but here it means this
        ("method: validation", ["'validation' is for centralised", "fedpart train", "fedavg"]),
    ],
)
def test_fedpart_run_says_whose_configuration_it_is(tmp_path: Path, text: str, wanted: list[str]) -> None:
    message = refusal(tmp_path, text, ExperimentConfig)
    for part in wanted:
        assert part in message, message


def test_optimisers_in_the_librarys_terms() -> None:
    config = TrainingConfig.from_dict(
        {
            "optimiser": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
            "optimiser_psi": {"name": "adamw", "betas": [0.5, 0.9]},
            "schedule": {"shape": "cosine", "final_rate": 0.5, "iterations": 7},
            "method_options": {"augerino": {"safe": False}, "partitioned": {}},
        }
    )
    settings = config.settings()
    assert settings.optimiser == SGDSettings(0.1, 0.9)
    assert settings.optimiser_psi == AdamWSettings(1e-3, 1e-8, (0.5, 0.9))
    assert (settings.weight_decay, settings.decay_scaling) == (1e-4, "reciprocal")
    assert (settings.schedule, settings.final_rate, settings.schedule_iterations) == ("cosine", 0.5, 7)
    assert settings.method_options == {}  # those of the method that runs
    assert TrainingConfig().settings().optimiser == AdamSettings(1e-3)
    assert TrainingConfig().settings().chunks == (0.8, 0.1, 0.1)


def test_the_masks_default_temperature_is_the_layers() -> None:
    assert MaskSection().temperature == inspect.signature(ConcreteMask).parameters["temperature"].default


def test_what_is_to_be_selected_does_not_decide_a_run() -> None:
    base, select = TrainingConfig(), {"values": [1, 2]}
    assert TrainingConfig.from_dict({"select": select}).hash() == base.hash()
    assert TrainingConfig.from_dict({"iterations": 3}).hash() != base.hash()


def test_a_folder_with_psi_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text("psi_from: runs/found\n")
    assert load_config("my.yaml", kind=TrainingConfig).psi_from == str(tmp_path / "runs" / "found")
