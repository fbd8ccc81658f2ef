"""Commands that run experiments here: ``fedpart run``, ``compare``, ``report``, ``train``, and others."""

from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from simulations.cli.guards import BAD_INPUT, fail, guarded, resumable
from simulations.cli.options import Configs, Out, Resume, Sets, Trust, arguments, several

app = typer.Typer()

_Engine = Annotated[
    str | None, typer.Option("--engine", metavar="local|ray", help="Where clients are computed.")
]
_Many = Annotated[Path | None, typer.Option("--out", help="Folder; finished runs in it are not run again.")]
_Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time, each a process of its own.")]


def _commands() -> ModuleType:
    """What the commands do; torch and rich take seconds to import, and ``fedpart --help`` must not."""
    from simulations.cli import commands

    return commands


@app.command()
def run(
    config: Configs = None,
    settings: Sets = None,
    engine: _Engine = None,
    out: Out = None,
    resume: Resume = None,
    trust_code: Trust = False,
) -> None:
    """Run a federated experiment and leave its results in a folder."""
    resumable(
        lambda: _commands().run_federated(*arguments(config, settings, engine), out, resume),
        out,
        resume,
        trust_code,
    )


@app.command()
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    trust_code: Trust = False,
) -> None:
    """Show again what came out of a finished run."""
    guarded(lambda: _commands().show(run), run, trust_code)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    kind: Annotated[
        str,
        typer.Option(
            "--format", metavar="safetensors|torch-export|onnx", help="onnx needs the extra fedpart\\[onnx]."
        ),
    ] = "safetensors",
    out: Annotated[Path | None, typer.Option("--out", help="The file; model.* in RUN if not given.")] = None,
    trust_code: Trust = False,
) -> None:
    """Write the network of a finished run into a file, and check that its outputs are the network's."""
    guarded(lambda: _commands().export(run, kind, out), out or run, trust_code)


@app.command()
def configs() -> None:
    """List the configurations that come with fedpart; their names stand for their files."""
    guarded(lambda: _commands().configs(), None)


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
    guarded(lambda: _commands().compare(*several(config, settings, engine), names, seeds, jobs, out), out)


@app.command()
def table(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A file, or one of simulations/configs/tables.")
    ],
    more: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="As with --set.")] = None,
    settings: Sets = None,
    scale: Annotated[str | None, typer.Option(help="One of the file's scales.")] = None,
    rows: Annotated[
        list[str] | None, typer.Option("--row", help="Run this one; may be given several times; all.")
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Run nothing: a table of what there is.")
    ] = False,
    jobs: _Jobs = 1,
    out: _Many = None,
) -> None:
    """Run the rows of a table, each with several seeds, and write it."""
    overrides = [*(settings or []), *(more or [])]
    guarded(lambda: _commands().table(name, overrides, scale, rows or [], finished, jobs, out), out)


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="What compare, run, train, select or search has written.")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="The file; DIR/report.html if not given.")] = None,
    trust_code: Trust = False,
) -> None:
    """Write one HTML page about a comparison, a run, a selection or a search, to be read offline."""
    guarded(lambda: _commands().report(folder, out), out or folder, trust_code)


@app.command()
def train(
    config: Configs = None,
    settings: Sets = None,
    out: Out = None,
    resume: Resume = None,
    trust_code: Trust = False,
) -> None:
    """Train a network and its hyperparameters on one data set, without federation."""
    resumable(lambda: _commands().train(*arguments(config, settings), out, resume), out, resume, trust_code)


@app.command()
def retrain(
    found: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="As with --set.")] = None,
    settings: Sets = None,
    out: Out = None,
    trust_code: Trust = False,
) -> None:
    """Train a plain network with the hyperparameters that a run has found, which stay fixed."""
    guarded(lambda: _commands().retrain(found, [*(settings or []), *(more or [])], out), out, trust_code)


@app.command()
def personalise(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished federated run.")],
    clients: Annotated[int | None, typer.Option(min=1, help="The first so many; all if not given.")] = None,
    client: Annotated[list[int] | None, typer.Option(help="This client; may be given several times.")] = None,
    holdout: Annotated[
        float | None,
        typer.Option(
            help="Share of each client's examples to score on; 0.25, or what evaluations have kept."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over a client's other examples.")] = 5,
    learning_rate: Annotated[
        float | None, typer.Option(help="Of SGD; the run's local.learning_rate if not given.")
    ] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Weights that move, such as 'fc2.*'; may be given several times; all."
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to keep the networks in.")] = None,
    settings: Sets = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for personal.json and personal.png; RUN's.")
    ] = None,
    trust_code: Trust = False,
) -> None:
    """Fine-tune a run's network on each client's examples, psi fixed, and show what each gains."""
    if client and clients:
        fail("Give --clients or --client, not both.", BAD_INPUT)
    tuning = {
        "clients": client or clients,
        "holdout": holdout,
        "epochs": epochs,
        "learning_rate": learning_rate,
        "layers": layers or ["*"],
    }
    guarded(lambda: _commands().personalise(run, tuning, settings or [], save, out), out or run, trust_code)


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
    guarded(lambda: _commands().select(*arguments(config, settings), values, seeds, jobs, out), out)


@app.command()
def search(
    config: Configs = None,
    settings: Sets = None,
    jobs: _Jobs = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Folder; a search that is in it goes on.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Folder of a search to go on with.")] = None,
    trust_code: Trust = False,
) -> None:
    """Tune keys of a configuration by Optuna, a run for each try; the best one, and what all have cost."""
    resumable(
        lambda: _commands().search(*arguments(config, settings), jobs, out, resume), out, resume, trust_code
    )


@app.command()
def costs(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER|LABEL=FOLDER,...", help="Finished searches and runs; seeds of a kind."
        ),
    ],
    accuracy: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="A fraction to be reached; the lowest at the end if not given."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for costs.csv, costs.md and costs.png.")] = Path(
        "runs/costs"
    ),
    trust_code: Trust = False,
) -> None:
    """Set searches and runs against each other: what their users would deploy, and what that has cost."""
    guarded(lambda: _commands().costs(folders, accuracy, out), out, trust_code)


@app.command()
def bench(
    workload: Annotated[
        str | None,
        typer.Option(help="W1 to W5 and D1, separated by commas (W1); see docs/guides/benchmarks.md."),
    ] = None,
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
    guarded(lambda: _commands().bench(workload, engine, rounds, json, pfl_python), json)
