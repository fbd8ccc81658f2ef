"""What the commands about a federation of processes do, from what was typed to what is shown."""

import os
import re
import shutil
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from shlex import quote

import typer
from rich.console import Console

from fedpart.checks import require
from fedpart.flower.nodes import node_name
from fedpart.flower.workarounds.control import SubmittedRun
from fedpart.training.files import kept
from simulations.cli.commands import new_folder
from simulations.cli.guards import interruptible
from simulations.cli.options import single
from simulations.config.load import ConfigError, ExperimentConfig, with_overrides
from simulations.config.yaml_files import read_extended, told
from simulations.deployment.control import Control, Unreachable
from simulations.deployment.keys import make_keys
from simulations.deployment.up import run_deployed
from simulations.errors import RunError, one_sentence
from simulations.flower.config import deployed_run_config
from simulations.folders import run_directory
from simulations.folders.data_files import listed_data
from simulations.results.pictures.run_figures import plot_run
from simulations.results.terminal.panel import show_end
from simulations.running.resume import continued_config, resumed_config
from simulations.running.run import draw_pictures

_FLOWERS = re.compile(r"(\x1b\[\d+m)?INFO\b|Successfully installed ")
WATCH_SECONDS = 2.0  # between two looks at a federation
_show = partial(typer.echo, nl=False)


def up(
    files: list[str], overrides: list[str], nodes: int | None, out: Path | None, resume: Path | None
) -> None:
    file = single(files)
    if nodes is not None:
        overrides = [*overrides, f"clients={nodes}"]
    config = _config(file, overrides, resume)
    folder = resume or out or new_folder(Path(str(file)).stem, config)
    if resume is None:
        run_directory.refuse_existing(folder)
        with one_sentence():
            listed_data(config)  # files that are not there are missed before a federation is started
    with interruptible(f"continue with: fedpart up --resume {quote(str(folder))}", folder):
        run_deployed(config, folder, resume=resume is not None, show=_show_ours)
    plot_run(folder)
    if (summary := run_directory.read_summary(folder, config)) is None:
        raise RunError(f"The run has completed, but {folder} holds no summary; see the logs in it.")
    show_end(Console(), summary, folder, file, overrides, command="up")


def _show_ours(text: str) -> None:
    """Of a log, what is not Flower's own: that is in the log of the ServerApp's process."""
    lines = text.splitlines(keepends=True)
    _show("".join(line for line in lines if _FLOWERS.match(line) is None))


def keys(folder: Path, nodes: int, host: Sequence[str] | None, owner: int | None) -> None:
    try:
        make_keys(folder, nodes, host or (), owner)
    except OSError as error:
        raise ConfigError(f"The keys cannot be written to {folder}: {error.strerror or error}.") from error
    typer.echo(f"Keys of {nodes} SuperNodes are in {folder}; each process gets its own folder of it.")


def register(link: str, keys: Path) -> None:
    here, gone = Control(link, keys).register()
    typer.echo(f"{here} keys are registered.")
    if gone:
        typer.echo(f"{gone} whose files are not in {keys} are not any more.")


def submit(
    link: str, keys: Path, files: list[str], overrides: list[str], out: Path | None, resume: Path | None
) -> None:
    file = single(files)
    folder = resume or out
    if folder is None or not folder.is_absolute():
        raise ConfigError("Give --out, the absolute path of a folder on the machine of the ServerApp.")
    config = _config(file, overrides, resume)
    if resume is None and _readable(folder):
        run_directory.refuse_existing(folder)
    run_config = deployed_run_config(config, folder, resume is not None)
    control = Control(link, keys)
    _check_registered(control.nodes().keys(), config.clients)
    id = control.start(run_config)
    rounds = f"{config.rounds} round{'s' * (config.rounds != 1)}"
    typer.echo(f"Run {id}: {config.clients} clients, {rounds}; results in {folder}.")


def status(link: str, keys: Path, watch: bool) -> None:
    control, shown = Control(link, keys), ""
    while True:
        try:
            said = _status(control)
        except Unreachable as error:
            if not watch:
                raise
            said = str(error)
        if said != shown:
            if watch:
                typer.clear()  # of a terminal
            typer.echo(shown := said)
        if not watch:
            return
        time.sleep(WATCH_SECONDS)


def _status(control: Control) -> str:
    """A line for each SuperNode, and for each run."""
    nodes = sorted(control.nodes().items(), key=lambda node: (len(node[0]), node[0]))
    lines = [f"{name}: {state}" for name, state in nodes]
    for run in control.runs():
        lines.append(f"run {run.id}: {run.status}{', ' + run.details if run.details else ''}; {run.out}")
    return "\n".join(lines)


def results(link: str, keys: Path, run: int | None, to: Path | None) -> None:
    control = Control(link, keys)
    if (id := run) is None:
        latest = control.runs()[:1]
        require(latest, "There is no run yet; submit one with fedpart submit.", ConfigError)
        id = latest[0].id
    ended, followed = control.run(id).finished, control.follow(id, _show)
    while not ended and (id := control.again(followed)) is not None:
        typer.echo(f"The ServerApp of run {followed.id} has died; run {id} goes on from its checkpoint.")
        followed = control.follow(id, _show)
    failure, source = "", Path(followed.out)
    if not followed.completed:
        remedy = f"continue it with fedpart submit --resume {quote(str(source))}"
        if _readable(source) and not kept(source / run_directory.CHECKPOINT):
            remedy = "it has no checkpoint: submit it anew, with another --out"
        failure = f"Run {followed.id} has {followed.outcome.rstrip('.')}; {remedy}."
    if to is not None:
        try:
            copy = _fetch(followed, to)
            typer.echo(f"What there is of it is in {copy}." if failure else f"Results are in {copy}.")
        except (ConfigError, RunError, OSError) as error:
            if not failure:
                raise
            failure += f" It is not copied: {error}"
    require(not failure, failure, RunError)


def _config(file: str | None, overrides: list[str], resume: Path | None) -> ExperimentConfig:
    """The configuration to run; a client's error does not end a deployed run unless it says so."""
    if resume is not None:
        config = resumed_config(resume, file, overrides)
    elif file is None:
        raise ConfigError("Name a configuration, for instance simulations/configs/quickstart.yaml.")
    else:
        data, files = read_extended(Path(file))
        data = {"on_client_error": "skip", **data}
        config = with_overrides(data, overrides, told(files), ExperimentConfig, files)
    remedy = "give fp32 or bf16 for a federation of several"
    require(config.precision != "auto", f"precision: auto is for one machine; {remedy}.", ConfigError)
    return config


def _check_registered(names: Collection[str], clients: int) -> None:
    """A client without a registered key cannot come, and a run refuses nodes that count other clients."""
    require(names, "No SuperNode is registered; register their keys with fedpart register.", ConfigError)
    wanted = [node_name(client) for client in range(clients)]
    missing = [name for name in wanted if name not in names]
    if missing == wanted:
        return  # a SuperLink that takes SuperNodes without keys
    if missing:
        raise ConfigError(
            f"The configuration has {clients} clients, but no key is registered for {len(missing)} of them "
            f"(such as {missing[0]}): add --set clients={clients - len(missing)}, or register their keys."
        )
    if len(names) > clients:
        typer.echo(
            f"{len(names)} SuperNodes are registered; the run takes {wanted[0]} to {wanted[-1]}, if they "
            f"were started with num-partitions={clients}."
        )


def _readable(folder: Path) -> bool:
    """Whether a run is there that can be read here; it may be on another machine, or another user's."""
    try:
        return run_directory.holds_run(folder)
    except OSError:
        return False


def _fetch(run: SubmittedRun, to: Path) -> Path:
    """Copy the folder of a run into ``to``, whose owner it gets, over an earlier copy, and draw it there."""
    source, copy = Path(run.out), to / Path(run.out).name
    remedy = f"look into {source} where the ServerApp runs"
    require(_readable(source), f"The results of run {run.id} cannot be read here; {remedy}.", RunError)
    if copy.exists() and copy.samefile(source):
        return copy
    if run_directory.holds_run(copy) and not _is_earlier(copy, source):
        raise ConfigError(f"{copy} holds another run than run {run.id}; give another folder for the copy.")
    to.mkdir(parents=True, exist_ok=True)
    owner = to.stat()
    for place, _, files in os.walk(source):
        folder = copy / Path(place).relative_to(source)
        folder.mkdir(exist_ok=True)
        shutil.copymode(place, folder)
        for file in files:
            shutil.copyfile(Path(place, file), folder / file)
    draw_pictures(copy, typer.echo)
    if os.geteuid() == 0:
        for path in (copy, *copy.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    return copy


def _is_earlier(copy: Path, source: Path) -> bool:
    """Whether the run in ``copy`` is the one in ``source``, and no further."""
    now = run_directory.saved_config(source)
    try:
        continued_config(copy, now)
    except ConfigError:
        return False
    return run_directory.read_summary(copy) is None or run_directory.read_summary(source) is not None
