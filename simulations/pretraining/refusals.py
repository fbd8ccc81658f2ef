"""What the commands of this room say when they are given what does not fit."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from simulations.errors import ConfigError, one_sentence


@contextmanager
def refusals() -> Iterator[None]:
    """Arguments, data and files that do not fit end the command with a sentence and exit status 2."""
    try:
        with one_sentence(expected=(ValueError, OSError, ImportError)):
            yield
    except ConfigError as error:
        typer.secho(str(error), fg="red", err=True)
        raise typer.Exit(2) from None
