"""The command line: ``fedpart run`` and ``fedpart compare``."""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:  # torch and rich take seconds to import; `fedpart --help` must not
    from simulations.config import ExperimentConfig

app = typer.Typer(
    help="Learn hyperparameters with the weights, in one federated run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

BAD_INPUT, FAILED = 2, 1
_EXAMPLE = "simulations/configs/quickstart.yaml"

_Configs = Annotated[
    list[str] | None, typer.Argument(metavar="CONFIG.yaml", help="The experiment; see simulations/configs/.")
]
_Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of it, e.g. server.learning_rate=0.01."),
]
_Engine = Annotated[
    str | None, typer.Option("--engine", metavar="local|ray", help="Where clients are computed.")
]


@app.command()
def run(
    config: _Configs = None,
    settings: _Sets = None,
    engine: _Engine = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; a new one in runs/ if not given.")
    ] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Folder of a run to continue.")] = None,
) -> None:
    """Run an experiment and leave its results in a folder."""
    file, overrides = _arguments(config, settings, engine)
    _guarded(lambda: _run(file, overrides, engine, out, resume), out or resume)


@app.command()
def compare(
    config: _Configs = None,
    settings: _Sets = None,
    engine: _Engine = None,
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = "fedavg,augerino,partitioned",
    seeds: Annotated[int, typer.Option(min=1, help="Runs per method, with seeds seed, seed+1, ...")] = 2,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder; finished runs in it are not run again.")
    ] = None,
) -> None:
    """Run several methods on the same data, clients and cohorts; a table and learning curves."""
    file, overrides = _arguments(config, settings, engine)

    names = [name.strip() for name in methods.split(",") if name.strip()]
    _guarded(lambda: _compare(file, overrides, names, seeds, out), out)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            typer.echo(f"fedpart {installed('fedpart')}")
        except PackageNotFoundError:
            import fedpart

            typer.echo(f"fedpart {fedpart.__version__}")
        raise typer.Exit


def main() -> None:
    """The entry point of the ``fedpart`` command."""
    sys.path.insert(0, os.getcwd())  # a user's own package.module:callable lies in the current folder
    app()


def _compare(file: str | None, overrides: list[str], names: list[str], seeds: int, out: Path | None) -> None:
    from rich.console import Console

    from simulations.compare import run_comparison
    from simulations.config import ConfigError, load_config
    from simulations.progress import Progress

    if file is None:
        raise ConfigError(f"Name a configuration, for instance fedpart compare {_EXAMPLE}.")
    folder = out or Path("runs") / f"compare-{Path(file).stem}"
    console = Console()
    with _interruptible(f"the same command continues the comparison in {folder}", folder):
        run_comparison(
            load_config(file, overrides), names, seeds, folder, progress=Progress(console), console=console
        )


def _run(
    file: str | None, overrides: list[str], engine: str | None, out: Path | None, resume: Path | None
) -> None:
    from rich.console import Console

    from simulations.config import ConfigError, load_config
    from simulations.panel import panel
    from simulations.plots import plot_run
    from simulations.progress import Progress
    from simulations.resume import resumed_config
    from simulations.run_directory import read_summary
    from simulations.runner import run_experiment

    console = Console()
    if resume is not None:
        if out is not None and out.resolve() != resume.resolve():
            raise ConfigError(f"--resume {resume} continues in its own folder; leave --out {out} away.")
        settings, folder = resumed_config(resume, file, overrides), resume
        before = read_summary(resume, settings.rounds)
        if before is not None:
            done = f"The run in {resume} is already finished; add --set rounds=N to train on."
            console.print(done, soft_wrap=True, markup=False, highlight=False)
            console.print(panel(before, folder, file))
            return
    elif file is None:
        raise ConfigError(f"Name a configuration, for instance fedpart run {_EXAMPLE}.")
    else:
        settings = load_config(file, overrides)
        folder = out or _new_folder(Path(file).stem, settings)
    with _interruptible(f"continue with: fedpart run --resume {folder}", folder):
        summary = run_experiment(settings, folder, resume=resume is not None, progress=Progress(console))
        plot_run(folder)
    console.print(panel(summary, folder, file))


@contextmanager
def _interruptible(remedy: str, folder: Path) -> Iterator[None]:
    """SIGINT and SIGTERM become a sentence that says how to go on, and the customary exit status."""
    from simulations.runner import Interrupted

    try:
        yield
    except Interrupted as stop:
        _say(f"Stopped after round {stop.round}; {remedy}", "yellow")
        raise typer.Exit(128 + stop.signal_number) from None
    except KeyboardInterrupt:
        _say(f"Stopped; {remedy}" if folder.exists() else "Stopped before the first round.", "yellow")
        raise typer.Exit(128 + signal.SIGINT) from None


def _arguments(
    config: list[str] | None, settings: list[str] | None, engine: str | None
) -> tuple[str | None, list[str]]:
    """The configuration, and the settings: ``--set a=1 b=2`` leaves b=2 among the arguments."""
    files = [text for text in config or [] if "=" not in text or Path(text).exists()]
    overrides = [*(settings or []), *[text for text in config or [] if text not in files]]
    if len(files) > 1:
        _fail(f"One configuration at a time, please: {', '.join(files)}.", BAD_INPUT)
    return (files[0] if files else None), [*overrides, *([f"engine={engine}"] if engine else [])]


def _new_folder(name: str, config: ExperimentConfig) -> Path:
    """``runs/<config>-<method>-seed<seed>``, with a number appended if that is taken."""
    method = re.sub(r"[^A-Za-z0-9_.-]+", "-", config.method)
    first = Path("runs") / f"{name}-{method}-seed{config.seed}"
    candidates = (
        first.with_name(f"{first.name}-{number}") if number > 1 else first for number in itertools.count(1)
    )
    return next(folder for folder in candidates if not folder.exists())


def _guarded(work: Callable[[], Any], out: Path | None) -> None:
    """Expected errors become a sentence and an exit status; a bug keeps its traceback.

    Args:
        work: what may fail.
        out: the folder of results; None: one in ``runs/``.
    """
    from fedpart import ClientError
    from simulations.config import ConfigError
    from simulations.experiment import RunError

    folder = out or Path("runs")
    try:
        work()
    except (ClientError, RunError) as error:
        _fail(str(error), FAILED)
    except ConfigError as error:
        _fail(str(error), BAD_INPUT)
    except OSError as error:
        if isinstance(error, FileExistsError) and error.errno is None:
            _fail(str(error), BAD_INPUT)  # a sentence of ours
        if not _concerns(error, folder):
            raise
        reason = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        _fail(
            f"The results cannot be kept in {folder} ({reason}); choose another folder with --out.", BAD_INPUT
        )


def _concerns(error: OSError, folder: Path) -> bool:
    """Whether the operating system refused the folder, something in it or above it, or has no space left."""
    if not isinstance(error.filename, (str, os.PathLike)):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    folder, place = folder.absolute(), Path(error.filename).absolute()
    return place.is_relative_to(folder) or folder.is_relative_to(place)


def _say(text: str, style: str) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(text, style=style), soft_wrap=True)


def _fail(text: str, status: int) -> NoReturn:
    _say(text, "red")
    raise typer.Exit(status)
