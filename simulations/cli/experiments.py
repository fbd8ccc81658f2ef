"""The command line: ``fedpart run``, ``compare``, ``report``, ``train``, and the others."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from simulations.cli.guards import BAD_INPUT, fail, guarded

# Each command imports simulations.cli.commands: torch and rich take seconds, and `fedpart --help` must not.

app = typer.Typer(
    help="Learn hyperparameters with the weights, in one run, federated or not.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Configs = Annotated[
    list[str] | None, typer.Argument(metavar="CONFIG.yaml", help="The experiment; see simulations/configs/.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of it, e.g. server.learning_rate=0.01."),
]
_Engine = Annotated[
    str | None, typer.Option("--engine", metavar="local|ray", help="Where clients are computed.")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder for the results; a new one in runs/ if not given.")
]
_Many = Annotated[Path | None, typer.Option("--out", help="Folder; finished runs in it are not run again.")]
_Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time, each a process of its own.")]
Resume = Annotated[Path | None, typer.Option("--resume", help="Folder of a run to continue.")]


@app.command()
def run(
    config: Configs = None,
    settings: Sets = None,
    engine: _Engine = None,
    out: Out = None,
    resume: Resume = None,
) -> None:
    """Run a federated experiment and leave its results in a folder."""
    file, overrides = arguments(config, settings, engine)

    def work() -> None:
        from simulations.cli import commands

        commands.run(commands.ExperimentConfig, file, overrides, out, resume)

    guarded(work, out or resume)


@app.command()
def compare(
    config: Configs = None,
    settings: Sets = None,
    engine: _Engine = None,
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = "fedavg,augerino,partitioned",
    seeds: Annotated[int, typer.Option(min=1, help="Runs per method, with seeds seed, seed+1, ...")] = 2,
    jobs: _Jobs = 1,
    out: _Many = None,
) -> None:
    """Run several methods on the same data, clients and cohorts; a table and learning curves.

    With several configurations, one table of all of them.
    """
    files, overrides = _files(config, settings, engine)
    names = [name.strip() for name in methods.split(",") if name.strip()]

    def work() -> None:
        from simulations.cli import commands

        commands.compare(files, overrides, names, seeds, jobs, out)

    guarded(work, out)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a comparison, or of a run.")],
    out: Annotated[Path | None, typer.Option("--out", help="The file; DIR/report.html if not given.")] = None,
) -> None:
    """Write one HTML page about a comparison or a run, finished or not, that can be read offline."""

    def work() -> None:
        from simulations.cli import commands

        commands.report(folder, out)

    guarded(work, out or folder)


@app.command()
def train(
    config: Configs = None,
    settings: Sets = None,
    out: Out = None,
    resume: Resume = None,
) -> None:
    """Train a network and its hyperparameters on one data set, without federation."""
    file, overrides = arguments(config, settings)

    def work() -> None:
        from simulations.cli import commands

        commands.run(commands.TrainingConfig, file, overrides, out, resume)

    guarded(work, out or resume)


@app.command()
def retrain(
    found: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="As with --set.")] = None,
    settings: Sets = None,
    out: Out = None,
) -> None:
    """Train a plain network with the hyperparameters that a run has found, which stay fixed."""

    def work() -> None:
        from simulations.cli import commands

        commands.retrain(found, [*(settings or []), *(more or [])], out)

    guarded(work, out)


@app.command()
def select(
    config: Configs = None,
    settings: Sets = None,
    values: Annotated[str | None, typer.Option(help="Values of select.key, separated by commas.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions, with seed + 0, 1, ...")] = None,
    jobs: _Jobs = 1,
    out: _Many = None,
) -> None:
    """Train with each value of a key, and choose by L_ML, without held-out data; a table and a picture."""
    file, overrides = arguments(config, settings)

    def work() -> None:
        from simulations.cli import commands

        commands.select(file, overrides, values, seeds, jobs, out)

    guarded(work, out)


@app.command()
def bench(
    workload: Annotated[
        str, typer.Option(help="W1 to W4, separated by commas; see docs/guides/benchmarks.md.")
    ] = "W1",
    engine: Annotated[
        str | None, typer.Option(help="Names, separated by commas; the usual ones if not given.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds of each engine.")] = 20,
    json: Annotated[
        Path | None, typer.Option(help="File for the rows, a line of JSON each; it is replaced.")
    ] = None,
    pfl_python: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Python of an environment with apple's pfl.")
    ] = None,
) -> None:
    """Time a round on every engine, against a bare PyTorch loop, stock Flower and pfl."""

    def work() -> None:
        from simulations.cli import commands

        commands.bench(workload, engine, rounds, json, pfl_python)

    guarded(work, json)


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
    import simulations.cli.deployment  # noqa: F401  its commands are added to these

    sys.path.insert(0, os.getcwd())  # a user's own package.module:callable lies in the current folder
    app()


def arguments(
    config: list[str] | None, settings: list[str] | None, engine: str | None = None
) -> tuple[str | None, list[str]]:
    """As :func:`_files`, where there is one configuration or none."""
    files, overrides = _files(config, settings, engine)
    if len(files) > 1:
        fail(f"One configuration at a time, please: {', '.join(files)}.", BAD_INPUT)
    return (files[0] if files else None), overrides


def _files(
    config: list[str] | None, settings: list[str] | None, engine: str | None = None
) -> tuple[list[str], list[str]]:
    """The configurations, and the settings: ``--set a=1 b=2`` leaves b=2 among the arguments."""
    files = [text for text in config or [] if "=" not in text or Path(text).exists()]
    overrides = [*(settings or []), *[text for text in config or [] if text not in files]]
    return files, [*overrides, *([f"engine={engine}"] if engine else [])]
