"""Retraining (App. G): a plain network, trained with the hyperparameters that a run has found."""

from pathlib import Path
from typing import Any

from torch import nn

from fedpart import AffineAugmentation, Task
from fedpart.methods.base import Method
from fedpart.methods.plain import Plain
from simulations.config.load import Config, ConfigError, TrainingConfig, with_overrides
from simulations.folders.run_directory import STATE, saved_config


def retraining_config(run: Path, overrides: list[str]) -> TrainingConfig:
    """The configuration that trains a plain network on a run's data with the run's final psi, fixed.

    Of a federated run, data, model and seeds are taken over.
    """
    saved = saved_config(run)
    if not (run / STATE).is_file():
        raise ConfigError(
            f"The run in {run} is not finished, so its hyperparameters are not known; continue it with "
            f"fedpart {saved.clock.command} --resume {run}."
        )
    method = saved.build_method()
    if isinstance(method, Plain) and not method.augment:
        raise ConfigError(
            f"The run in {run} has found no hyperparameters to train with, for its method {saved.method!r} "
            f"learns none by gradients; name a run of another method, or set them in a configuration."
        )
    data: dict[str, Any] = saved.resolved()
    data["hyperparameters"]["affine"] = _affine(data["hyperparameters"]["affine"], method)
    if not isinstance(saved, TrainingConfig):
        shared = Config.model_fields.keys() - {"evaluate_every", "checkpoint_every"}  # of another clock
        data = {key: value for key, value in data.items() if key in shared}
    data |= {
        "method": "none",
        "method_options": {"none": {"augment": True}},
        "psi_from": str(run.absolute()),
        "keep_best": False,  # there is no L_ML of one network
        "evidence": "lml",
        "select": None,
        "search": None,
    }
    return with_overrides(data, overrides, f"retraining {run}", TrainingConfig)


def _affine(section: dict[str, Any] | None, method: Method) -> dict[str, Any] | None:
    """The affine section of what the method trained: Augerino has a family of its own."""
    if section is None:
        return None
    task = Task(nn.Linear(1, 1), transforms={"affine": AffineAugmentation(**section)})
    family = method.prepare(task).transforms["affine"].family
    return section if family == section["family"] else section | {"family": family, "initial": None}
