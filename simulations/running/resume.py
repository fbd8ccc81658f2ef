"""Runs that follow from one in a folder: it goes on, a plain one with its psi, another method beside it."""

from collections.abc import Collection
from pathlib import Path
from shlex import quote
from typing import Any

from torch import nn

from fedpart import AffineAugmentation, Task
from fedpart.checks import require
from fedpart.methods.base import Method
from fedpart.methods.plain import Plain
from simulations.config import load
from simulations.config.load import AnyConfig, Config, ConfigError, ExperimentConfig, TrainingConfig
from simulations.config.yaml_files import key_of
from simulations.folders.cell import differences
from simulations.folders.run_directory import BESIDE, CONFIG, STATE, read_summary, saved_config
from simulations.results.terminal.progress import Progress
from simulations.running.precision import choose_precision
from simulations.running.run import draw_pictures, run_experiment


def resumed_config(
    folder: str | Path, file: str | None, overrides: list[str], kind: type[AnyConfig] = ExperimentConfig
) -> AnyConfig:
    """The configuration to continue the run in ``folder`` with: its own, or ``file``, with settings."""
    wanted: AnyConfig = _saved(folder, kind)  # refuses what is no run of that kind before the file is read
    if file is not None:
        wanted = load.load_config(file, overrides, kind)
    elif overrides:
        wanted = load.with_overrides(wanted.resolved(), overrides, str(Path(folder) / CONFIG), kind)
    wanted = choose_precision(wanted, folder)
    return continued_config(folder, wanted, set(map(key_of, overrides)))


def continued_config(folder: str | Path, wanted: AnyConfig, given: Collection[str] = ()) -> AnyConfig:
    """The configuration with which a run goes on; keys ``given`` may change if they decide no numbers."""
    saved = _saved(folder, type(wanted))
    total, decisive = saved.clock.total, saved.deciding("numbers")
    changes: dict[str, Any] = {}
    for key, then, now in differences(saved.resolved(), wanted.resolved()):
        if key.partition(".")[0] not in decisive:
            if key in given and "." not in key:  # a file's value is not a wish to change it
                changes[key] = now
        elif key == total and now > then and saved.may_grow:
            changes[key] = now
        else:
            may = f"(only {total} may grow)" if saved.may_grow else f"(its {total} are part of its schedule)"
            remedy = f"resume it as it is {may}, or start a new run with --out"
            raise ConfigError(f"The run in {folder} has {key} = {then!r}, not {now!r}; {remedy}.")
    return type(saved).from_dict({**saved.resolved(), **changes})


def _saved(folder: str | Path, kind: type[AnyConfig]) -> AnyConfig:
    saved = saved_config(folder)
    remedy = f"continue it with fedpart {saved.clock.command} --resume {quote(str(folder))}"
    require(isinstance(saved, kind), f"The run in {folder} is of {saved.clock.kind}; {remedy}.", ConfigError)
    return saved


def retraining_config(run: Path, overrides: list[str]) -> TrainingConfig:
    """The configuration that trains a plain network on a run's data with the run's final psi, fixed."""
    saved = saved_config(run)
    if not (run / STATE).is_file():
        fault = f"The run in {run} is not finished, so its hyperparameters are not known"
        raise ConfigError(
            f"{fault}; continue it with fedpart {saved.clock.command} --resume {quote(str(run))}."
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
    return load.with_overrides(data, overrides, f"retraining {run}", TrainingConfig)


def _affine(section: dict[str, Any] | None, method: Method) -> dict[str, Any] | None:
    """The affine section of what the method trained: Augerino has a family of its own."""
    if section is None:
        return None
    task = Task(nn.Linear(1, 1), transforms={"affine": AffineAugmentation(**section)})
    family = method.prepare(task).transforms["affine"].family
    return section if family == section["family"] else section | {"family": family, "initial": None}


def beside_config(config: ExperimentConfig) -> ExperimentConfig | None:
    """The run that ``config.beside`` asks for, in this process; None: it asks for none, or for itself."""
    if config.beside in (None, config.method) or config.privacy is not None:  # which it would spend
        return None
    here: dict[str, Any] = {"engine": "local", "workers": None, "loggers": [], "beside": None}
    here["keep_best"] = config.keep_best if config.beside.startswith("partitioned") else None  # no L_ML
    try:
        return type(config).from_dict({**config.resolved(), **here, "method": config.beside})
    except ConfigError as error:
        told = f"beside: {config.beside} does not fit, so add --set beside=null."
        raise ConfigError(f"{told} {error}") from None


def missing_beside(config: Config, folder: Path, given: Collection[str] = ()) -> ExperimentConfig | None:
    """That run, if it is asked for and the folder of the first one does not have it to its end; refused if it
    has another one."""
    other = beside_config(config) if isinstance(config, ExperimentConfig) else None
    if other is None:
        return None
    if (folder / BESIDE / CONFIG).exists():
        continued_config(folder / BESIDE, choose_precision(other, folder), given)
    return None if read_summary(folder / BESIDE, other) is not None else other


def run_beside(
    other: ExperimentConfig, folder: Path, progress: Progress, given: Collection[str] = ()
) -> None:
    """Make the run ``other`` in the folder of the first one, or go on with it, and draw both."""
    other, place = choose_precision(other, folder), folder / BESIDE
    begun = (place / CONFIG).exists()
    config = continued_config(place, other, given) if begun else other
    run_experiment(config, place, resume=begun, progress=progress)
    draw_pictures(folder, progress.note)
