"""The ``fedpart`` command: all of its commands, and where it begins."""

import os
from typing import Annotated

import typer
from click import Context
from typer.core import TyperGroup

from fedpart import __version__
from fedpart.registry import FOLDERS
from simulations.cli import deployment, experiments
from simulations.cli.guards import BAD_INPUT, fail, outputs_guarded


class _Commands(TyperGroup):
    def parse_args(self, context: Context, args: list[str]) -> list[str]:
        """Refuse what no file's name can have in it, before paths are looked at."""
        for text in args:
            if "\0" in text:
                fail(f"There is a NUL character in {text!r}; leave it out.", BAD_INPUT)
        return super().parse_args(context, args)


app = typer.Typer(
    cls=_Commands,
    help="Learn hyperparameters with the weights, in one run, federated or not.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(experiments.app)
app.add_typer(deployment.app)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"fedpart {__version__}")
        raise typer.Exit


def main() -> None:
    """The entry point of the ``fedpart`` command."""
    FOLDERS.append(os.getcwd())  # a user's own package.module:callable may lie there
    with outputs_guarded():
        app()
