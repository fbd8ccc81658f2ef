"""What the commands of a deployment do, from what was typed to what is shown."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import typer

from simulations.commands import new_folder
from simulations.config import ConfigError, ExperimentConfig, with_overrides
from simulations.config_file import read_yaml
from simulations.deployment.control import Control, Run
from simulations.deployment.up import run_deployed
from simulations.experiment import RunError
from simulations.flower_config import deployed_run_config
from simulations.guards import interruptible
from simulations.panel import panel
from simulations.plots import plot_run
from simulations.resume import continued_config, resumed_config
from simulations.run_directory import holds_run, read_summary, refuse_existing, saved_config


def up(
    file: str | None, overrides: list[str], nodes: int | None, out: Path | None, resume: Path | None
) -> None:
    """Run one experiment on processes of this machine, or continue one."""
    from rich.console import Console

    if nodes is not None:
        overrides = [*overrides, f"clients={nodes}"]
    config = _config(file, overrides, resume)
    folder = resume or out or new_folder(Path(str(file)).stem, config)
    if resume is None:
        refuse_existing(folder)
    with interruptible(f"continue with: fedpart up --resume {folder}", folder):
        run_deployed(config, folder, resume=resume is not None, show=_show)
    plot_run(folder)
    summary = read_summary(folder, config)
    if summary is None:
        raise RunError(f"The run has completed, but {folder} holds no summary; see the logs in it.")
    Console().print(panel(summary, folder, file))


def submit(
    link: str, keys: Path, file: str | None, overrides: list[str], out: Path | None, resume: Path | None
) -> None:
    """Start a run on a federation."""
    folder = resume or out
    if folder is None or not folder.is_absolute():
        raise ConfigError("Give --out, the absolute path of a folder on the machine of the ServerApp.")
    config = _config(file, overrides, resume)
    id = Control(link, keys).start(deployed_run_config(config, folder, resume is not None))
    typer.echo(f"Run {id}: {config.clients} clients, {config.rounds} rounds; results in {folder}.")


def status(link: str, keys: Path) -> None:
    """The SuperNodes and the runs."""
    control = Control(link, keys)
    for name, state in sorted(control.nodes().items(), key=lambda node: (len(node[0]), node[0])):
        typer.echo(f"{name}: {state}")
    for run in control.runs():
        typer.echo(f"run {run.id}: {run.status}{', ' + run.details if run.details else ''}; {run.out}")


def results(link: str, keys: Path, id: int | None, to: Path | None) -> None:
    """Follow a run to its end, copy what it has left, and say what has become of it."""
    control = Control(link, keys)
    if id is None:
        latest = control.runs()[:1]
        if not latest:
            raise ConfigError("There is no run yet; submit one with fedpart submit.")
        id = latest[0].id
    run = control.follow(id, _show)
    failure = ""
    if not run.completed:
        failure = f"Run {run.id} has {run.outcome}; continue it with fedpart submit --resume {run.out}."
    if to is not None:
        try:
            typer.echo(f"Results are in {_fetch(run, to)}.")
        except (ConfigError, RunError, OSError) as error:
            if not failure:
                raise
            failure += f" It is not copied: {error}"
    if failure:
        raise RunError(failure)


def _config(file: str | None, overrides: list[str], resume: Path | None) -> ExperimentConfig:
    """The configuration to run; a client's error does not end a deployed run unless it says so."""
    if resume is not None:
        config = resumed_config(resume, file, overrides)
    elif file is None:
        raise ConfigError("Name a configuration, for instance simulations/configs/quickstart.yaml.")
    else:
        data: dict[str, Any] = {"on_client_error": "skip", **read_yaml(Path(file))}
        config = with_overrides(data, overrides, file, ExperimentConfig)
    if config.precision == "auto":
        raise ConfigError(
            "precision: auto is for one machine; give fp32 or bf16 for a federation of several."
        )
    return config


def _fetch(run: Run, to: Path) -> Path:
    """Copy the folder of a run into ``to``, over an earlier copy; it belongs to whom ``to`` belongs to.

    Raises:
        ConfigError: another run is where the copy goes.
        RunError: there is nothing to copy here.
    """
    source, copy = Path(run.out), to / Path(run.out).name
    try:
        readable = holds_run(source)
    except OSError:  # it belongs to the ServerApp's user
        readable = False
    if not readable:
        raise RunError(
            f"The results of run {run.id} cannot be read here; look into {source} where the ServerApp runs."
        )
    if copy.exists() and copy.samefile(source):
        return copy
    if holds_run(copy) and not _is_earlier(copy, source):
        raise ConfigError(f"{copy} holds another run than run {run.id}; give another folder for the copy.")
    to.mkdir(parents=True, exist_ok=True)
    owner = to.stat()
    for place, _, files in os.walk(source):
        folder = copy / Path(place).relative_to(source)
        folder.mkdir(exist_ok=True)
        for file in files:
            shutil.copyfile(Path(place, file), folder / file)
        if os.geteuid() == 0:
            for path in (folder, *(folder / file for file in files)):
                os.chown(path, owner.st_uid, owner.st_gid)
    return copy


def _is_earlier(copy: Path, source: Path) -> bool:
    """Whether the run in ``copy`` is the one in ``source``, and no further."""
    try:
        continued_config(copy, saved_config(source))
    except ConfigError:
        return False
    return read_summary(copy) is None or read_summary(source) is not None


def _show(text: str) -> None:
    typer.echo(text, nl=False)
