"""Configurations of centralised training, in the terms of the library."""

import inspect
from pathlib import Path

import pytest

from fedpart import AdamSettings, AdamWSettings, ConcreteMask, SGDSettings
from simulations.config.load import TrainingConfig, load_config
from simulations.config.sections import MaskSection


def test_optimisers_in_the_librarys_terms() -> None:
    config = TrainingConfig.from_dict(
        {
            "optimiser": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
            "optimiser_psi": {"name": "adamw", "eps": 1e-7},
            "schedule": {"shape": "cosine", "final_rate": 0.5, "iterations": 7},
            "method_options": {"augerino": {"safe": False}, "partitioned": {}},
        }
    )
    settings = config.settings()
    assert settings.optimiser == SGDSettings(0.1, 0.9)
    assert settings.optimiser_psi == AdamWSettings(1e-3, 1e-7)
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
