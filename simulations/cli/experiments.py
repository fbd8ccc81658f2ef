"""Commands that run experiments here: ``fedpart run``, ``compare``, ``report``, ``train``, and others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulations.cli.guards import perform
from simulations.cli.options import Configs, Out, Resume, Sets, arguments, several

app = typer.Typer()

_Engine = Annotated[
    str | None, typer.Option("--engine", metavar="local|ray", help="Where clients are computed.")
]
_Many = Annotated[Path | None, typer.Option("--out", help="Folder; finished runs in it are not run again.")]
_Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time, each a process of its own.")]


@app.command()
def run(
    config: Configs = None,
    settings: Sets = None,
    engine: _Engine = None,
    out: Out = None,
    resume: Resume = None,
) -> None:
    """Run a federated experiment and leave its results in a folder."""
    perform("commands.run_federated", out or resume, *arguments(config, settings, engine), out, resume)


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
    names = [name.strip() for name in methods.split(",") if name.strip()]
    perform("commands.compare", out, *several(config, settings, engine), names, seeds, jobs, out)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a comparison, or of a run.")],
    out: Annotated[Path | None, typer.Option("--out", help="The file; DIR/report.html if not given.")] = None,
) -> None:
    """Write one HTML page about a comparison or a run, finished or not, that can be read offline."""
    perform("commands.report", out or folder, folder, out)


@app.command()
def train(config: Configs = None, settings: Sets = None, out: Out = None, resume: Resume = None) -> None:
    """Train a network and its hyperparameters on one data set, without federation."""
    perform("commands.train", out or resume, *arguments(config, settings), out, resume)


@app.command()
def retrain(
    found: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="As with --set.")] = None,
    settings: Sets = None,
    out: Out = None,
) -> None:
    """Train a plain network with the hyperparameters that a run has found, which stay fixed."""
    perform("commands.retrain", out, found, [*(settings or []), *(more or [])], out)


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
    perform("commands.select", out, *arguments(config, settings), values, seeds, jobs, out)


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
    perform("commands.bench", json, workload, engine, rounds, json, pfl_python)
