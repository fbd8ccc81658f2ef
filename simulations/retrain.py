"""Retraining (App. G): a plain network, trained with the hyperparameters that a run has found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulations.config import Config, ConfigError, TrainingConfig
from simulations.config_file import apply_override
from simulations.run_directory import STATE, saved_config

_COUNTED = ("evaluate_every", "checkpoint_every")  # by another clock, where the run was federated


def retraining_config(run: Path, overrides: list[str]) -> TrainingConfig:
    """The configuration that trains a plain network on a run's data with the run's final psi, fixed.

    Args:
        run: folder of a finished run; of a federated one, data, model and seeds are taken over.
        overrides: ``key=value`` settings.

    Raises:
        ConfigError: the run is not there or not finished, or a setting does not fit.
    """
    saved = saved_config(run)
    if not (run / STATE).is_file():
        raise ConfigError(
            f"The run in {run} is not finished, so its hyperparameters are not known; continue it with "
            f"fedpart {saved.clock.command} --resume {run}."
        )
    data: dict[str, Any] = saved.resolved()
    if not isinstance(saved, TrainingConfig):
        shared = Config.model_fields.keys() - set(_COUNTED)
        data = {key: value for key, value in data.items() if key in shared}
    data |= {
        "method": "none",
        "method_options": {"none": {"augment": True}},
        "psi_from": str(run.absolute()),
        "keep_best": False,  # there is no L_ML of one network
        "evidence": "lml",
        "select": None,
    }
    for override in overrides:
        apply_override(data, override)
    sets = "".join(f" --set {override}" for override in overrides)
    return TrainingConfig.from_dict(data, f"retraining {run}{sets}")
