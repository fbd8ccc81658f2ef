"""Commands that run experiments here: ``fedpart run``, ``compare``, ``report``, ``train``, and others."""

from pathlib import Path
from typing import Annotated

import typer

from simulations.cli.guards import BAD_INPUT, fail
from simulations.cli.options import Configs, More, Out, Result, Resume, Sets, Trust, commands_of

app = typer.Typer()
command = commands_of(app, "simulations.cli.commands")

_Engine = Annotated[
    str | None, typer.Option("--engine", metavar="local|ray", help="Where clients are computed.")
]
_Many = Annotated[Path | None, typer.Option("--out", help="Folder; finished runs in it are not run again.")]
_Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time, each a process of its own.")]


@command
def run(
    config: Configs = None, settings: Sets = None, engine: _Engine = None, out: Out = None,
    resume: Resume = None, trust_code: Trust = False,
) -> None:  # fmt: skip
    """Run a federated experiment and leave its results in a folder."""


@command
def show(run: Result, trust_code: Trust = False) -> None:
    """Show again what came out of a finished run."""


@command
def export(
    run: Result,
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


@command
def predict(
    run: Result,
    source: Annotated[
        Path, typer.Argument(metavar="NEW", help="A CSV or Parquet file, an image, or a folder of images.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The CSV file.")] = Path("predictions.csv"),
    trust_code: Trust = False,
) -> None:
    """Write what a finished run predicts for new rows, images or texts: labels and probabilities."""


@command
def new(
    kind: Annotated[
        str, typer.Argument(metavar="table|images|text|signals|model|flower", help="What it is about.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, or an empty one.")],
) -> None:
    """Write a folder to start from: a configuration with data, a network of one's own, or a Flower app."""


@command
def configs() -> None:
    """List the configurations that come with fedpart; their names stand for their files."""


@command
def schema(
    kind: Annotated[str, typer.Argument(metavar="run|train", help="Of which command.")] = "run",
) -> None:
    """Print the JSON Schema of a configuration, by which editors complete and check its keys."""


@command
def compare(
    config: Configs = None, settings: Sets = None, engine: _Engine = None,
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = "fedavg,augerino,partitioned",
    seeds: Annotated[int, typer.Option(min=1, help="Runs per method, with seeds seed, seed+1, ...")] = 2,
    jobs: _Jobs = 1, out: _Many = None,
) -> None:  # fmt: skip
    """Run several methods on the same data, clients and cohorts; a table and learning curves."""


@command
def table(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A file, or one of simulations/configs/tables.")
    ],
    more: More = None, settings: Sets = None,
    scale: Annotated[str | None, typer.Option(help="One of the file's scales.")] = None,
    rows: Annotated[
        list[str] | None, typer.Option("--row", help="Run this one; may be given several times; all.")
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Run nothing: a table of what there is.")
    ] = False,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Run nothing: a table of docs/measurements/raw and of what there is."),
    ] = False,
    jobs: _Jobs = 1, out: _Many = None,
) -> None:  # fmt: skip
    """Run the rows of a table, each with several seeds, and write it."""


@command
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="What compare, run, train, select or search has written.")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="The file; DIR/report.html if not given.")] = None,
    trust_code: Trust = False,
) -> None:
    """Write one HTML page about a comparison, a run, a selection or a search, to be read offline."""


@command
def train(
    config: Configs = None, settings: Sets = None, out: Out = None, resume: Resume = None,
    trust_code: Trust = False,
) -> None:  # fmt: skip
    """Train a network and its hyperparameters on one data set, without federation."""


@command
def retrain(
    found: Result, more: More = None, settings: Sets = None, out: Out = None, trust_code: Trust = False
) -> None:
    """Train a plain network with the hyperparameters that a run has found, which stay fixed."""


@command
def personalise(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished federated run.")],
    clients: Annotated[int | None, typer.Option(min=1, help="The first so many; all if not given.")] = None,
    client: Annotated[list[str] | None, typer.Option(help="This number or name; as often as needed.")] = None,
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
    out: Annotated[Path | None, typer.Option("--out", help="Folder for personal.json; RUN's.")] = None,
    trust_code: Trust = False,
) -> None:
    """Fine-tune a run's network on each client's examples, psi fixed, and show what each gains."""


@command
def select(
    config: Configs = None, settings: Sets = None,
    values: Annotated[str | None, typer.Option(help="Values of select.key, separated by commas.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions, with seed + 0, 1, ...")] = None,
    laplace: Annotated[
        bool, typer.Option("--laplace", help="Also plain networks, judged by diagonal Laplace.")
    ] = False,
    jobs: _Jobs = 1, out: _Many = None,
) -> None:  # fmt: skip
    """Train with each value of a key, and choose by L_ML, without held-out data; a table and a picture."""


@command
def search(
    config: Configs = None, settings: Sets = None, jobs: _Jobs = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Folder; a search that is in it goes on.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Folder of a search to go on with.")] = None,
    trust_code: Trust = False,
) -> None:  # fmt: skip
    """Tune keys of a configuration by Optuna, a run for each try; the best one, and what all have cost."""


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def bench() -> None:
    """Say where the program is that times a round on every engine."""
    fail("A round is timed by a program of a checkout: python -m benchmarks.rounds.bench --help", BAD_INPUT)
