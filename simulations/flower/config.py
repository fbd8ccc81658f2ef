"""Experiments from Flower's run config, which knows scalars only."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedpart import ClipSettings
from fedpart.checks import require
from fedpart.training.files import parsed
from fedpart.updates.combining.base import combined
from fedpart.updates.stages.privacy import refuse_seeded
from simulations.building.experiment import Experiment, build
from simulations.config.load import ExperimentConfig, load_config
from simulations.errors import ConfigError
from simulations.folders.data_files import listed_data

APP = Path(__file__).parents[2]  # of the app as Flower has unpacked it


def run_config_of(config: ExperimentConfig) -> dict[str, str]:
    """The run config from which :func:`read_run_config` makes ``config`` again, in any process."""
    return {"experiment": json.dumps(config.resolved())}


def deployed_run_config(config: ExperimentConfig, out: Path, resume: bool) -> dict[str, str | bool]:
    """The run config of a run on real SuperNodes, with its folder ``out`` on the ServerApp's machine."""
    return {**run_config_of(among_strangers(config)), "out": str(out), "resume": resume}


def among_strangers(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration of a run whose clients are strangers: what it does not say is safe."""
    try:
        refuse_seeded(config.privacy)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    way = combined(config.method, config.options_of(config.method))[1]
    if "clip" in config.model_fields_set or way.variates:  # which such norms would not let them
        return config
    return config.model_copy(update={"clip": ClipSettings(**ClipSettings.short["adaptive"])})


def read_run_config(run_config: Mapping[str, Any]) -> ExperimentConfig:
    """The configuration in a run config: ``experiment``, or the file ``config`` with ``overrides``."""
    if run_config.get("experiment"):
        config = ExperimentConfig.from_dict(parsed(run_config["experiment"]))
    else:
        overrides = str(run_config.get("overrides", ""))
        settings = overrides.split(";") if ";" in overrides else overrides.split()
        settings = [setting.strip() for setting in settings if setting.strip()]
        config = load_config(APP / str(run_config["config"]), settings)
    remedy = "leave attack out, clients here are real"
    require(config.attack is None, f"An attack is simulated by fedpart run alone; {remedy}.", ConfigError)
    return config


def build_experiment(run_config: Mapping[str, Any]) -> Experiment:
    """The experiment that a run config stands for, with its number of torch threads set in this process."""
    config = read_run_config(run_config)
    torch.set_num_threads(config.threads)
    if text := run_config.get("statistics"):
        config = config.with_statistics(parsed(text))
        listed_data(config.with_statistics("federated"))  # a client trains on nothing but a file
    return build(config)


def residuals_folder(run_config: Mapping[str, Any]) -> Path:
    """Where clients keep what error feedback needs: the run config's ``residuals``, or in Flower's home."""
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    return Path(run_config.get("residuals") or home / "fedpart" / "residuals")
