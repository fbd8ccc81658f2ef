"""A second run beside a first one: another method on the same data, clients and cohorts, to compare with."""

from __future__ import annotations

from pathlib import Path

from simulations.config.load import Config, ExperimentConfig
from simulations.folders.run_directory import BESIDE, CONFIG, read_summary
from simulations.running.precision import choose_precision
from simulations.running.resume import continued_config
from simulations.running.run import run_experiment
from simulations.terminal.progress import Progress


def beside_config(config: ExperimentConfig) -> ExperimentConfig | None:
    """The run that ``config.beside`` asks for, in this process; None: it asks for none, or for itself.

    Raises:
        ConfigError: its method cannot have these settings; one sentence.
    """
    if config.beside in (None, config.method):
        return None
    here = {"engine": "local", "workers": None, "ray_address": None, "beside": None}
    return type(config).from_dict({**config.resolved(), **here, "method": config.beside})


def is_missing(config: Config, folder: Path) -> bool:
    """Whether that run is asked for, and the folder of the first one does not have it to its end.

    Raises:
        ConfigError: as :func:`beside_config`.
    """
    other = beside_config(config) if isinstance(config, ExperimentConfig) else None
    return other is not None and read_summary(folder / BESIDE, other) is None


def run_beside(config: Config, folder: Path, progress: Progress) -> None:
    """Make that run in the folder of the first one, or go on with it.

    Raises:
        ConfigError, ClientError, RunError, Interrupted: as :func:`.run_experiment`.
    """
    assert isinstance(config, ExperimentConfig), "others have no key `beside`"
    other, own = beside_config(choose_precision(config, folder)), folder / BESIDE
    if other is not None:
        begun = (own / CONFIG).exists()
        run_experiment(continued_config(own, other) if begun else other, own, resume=begun, progress=progress)
