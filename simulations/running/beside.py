"""A second run beside a first one: another method on the same data, clients and cohorts, to compare with."""

from collections.abc import Collection
from pathlib import Path

from simulations.config.load import Config, ConfigError, ExperimentConfig
from simulations.folders.run_directory import BESIDE, CONFIG, read_summary
from simulations.results.terminal.progress import Progress
from simulations.running.precision import choose_precision
from simulations.running.resume import continued_config
from simulations.running.run import draw_pictures, run_experiment


def beside_config(config: ExperimentConfig) -> ExperimentConfig | None:
    """The run that ``config.beside`` asks for, in this process; None: it asks for none, or for itself."""
    if config.beside in (None, config.method):
        return None
    here = {"engine": "local", "workers": None, "ray_address": None, "loggers": [], "beside": None}
    try:
        return type(config).from_dict({**config.resolved(), **here, "method": config.beside})
    except ConfigError as error:
        told = f"beside: {config.beside} does not fit, so add --set beside=null."
        raise ConfigError(f"{told} {error}") from None


def missing_beside(config: Config, folder: Path) -> ExperimentConfig | None:
    """That run, if it is asked for and the folder of the first one does not have it to its end."""
    other = beside_config(config) if isinstance(config, ExperimentConfig) else None
    return None if other is None or read_summary(folder / BESIDE, other) is not None else other


def run_beside(
    other: ExperimentConfig, folder: Path, progress: Progress, given: Collection[str] = ()
) -> None:
    """Make the run ``other`` in the folder of the first one, or go on with it, and draw both.

    ``given`` as :func:`continued_config`; where the precision is ``auto``, it is that of the first run.
    """
    other, own = choose_precision(other, folder), folder / BESIDE
    begun = (own / CONFIG).exists()
    config = continued_config(own, other, given) if begun else other
    run_experiment(config, own, resume=begun, progress=progress)
    draw_pictures(folder, progress)
