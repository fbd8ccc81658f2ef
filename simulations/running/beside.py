"""A second run beside a first one: another method on the same data, clients and cohorts, to compare with."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from simulations.config.load import Config, ConfigError, ExperimentConfig
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
    here = {"engine": "local", "workers": None, "ray_address": None, "loggers": [], "beside": None}
    try:
        return type(config).from_dict({**config.resolved(), **here, "method": config.beside})
    except ConfigError as error:
        told = f"beside: {config.beside} does not fit, so add --set beside=null."
        raise ConfigError(f"{told} {error}") from None


def is_missing(config: Config, folder: Path) -> bool:
    """Whether that run is asked for, and the folder of the first one does not have it to its end.

    Raises:
        ConfigError: as :func:`beside_config`.
    """
    other = beside_config(config) if isinstance(config, ExperimentConfig) else None
    return other is not None and read_summary(folder / BESIDE, other) is None


def run_beside(config: Config, folder: Path, progress: Progress, given: Collection[str] = ()) -> None:
    """Make that run in the folder of the first one, or go on with it; ``given`` as :func:`continued_config`.

    Raises:
        ConfigError, ClientError, RunError, Interrupted: as :func:`.run_experiment`.
    """
    assert isinstance(config, ExperimentConfig), "others have no key `beside`"
    other, own = beside_config(choose_precision(config, folder)), folder / BESIDE
    if other is not None:
        begun = (own / CONFIG).exists()
        config = continued_config(own, other, given) if begun else other
        run_experiment(config, own, resume=begun, progress=progress)
