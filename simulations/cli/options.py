"""Options and arguments that several commands take, and what they mean."""

from pathlib import Path
from typing import Annotated

import typer

from simulations.cli.guards import BAD_INPUT, fail
from simulations.config.yaml_files import file_of, read_yaml
from simulations.errors import ConfigError


def _there(config: list[str] | None) -> list[str] | None:
    """Look for the files before anything is imported, which takes seconds."""
    for file in several(config, None)[0]:
        try:
            if not Path(file).exists():
                read_yaml(Path(file))
        except ConfigError as error:
            fail(str(error), BAD_INPUT)
    return config


Configs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG.yaml",
        help="The experiment: a file, or a name that fedpart configs lists.",
        callback=_there,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of it, e.g. server.learning_rate=0.01."),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder for the results; a new one in runs/ if not given.")
]
Trust = Annotated[
    bool,
    typer.Option("--trust-code", help="Run code that the folder names; only if you trust who has made it."),
]
Resume = Annotated[Path | None, typer.Option("--resume", help="Folder of a run to continue.")]


def arguments(
    config: list[str] | None, settings: list[str] | None, engine: str | None = None
) -> tuple[str | None, list[str]]:
    """As :func:`several`, where there is one configuration or none."""
    files, overrides = several(config, settings, engine)
    if len(files) > 1:
        fail(f"One configuration at a time, please: {', '.join(files)}.", BAD_INPUT)
    return (files[0] if files else None), overrides


def several(
    config: list[str] | None, settings: list[str] | None, engine: str | None = None
) -> tuple[list[str], list[str]]:
    """The configurations, and the settings: ``--set a=1 b=2`` leaves b=2 among the arguments."""
    files = [text for text in config or [] if "=" not in text or Path(text).exists()]
    overrides = [*(settings or []), *[text for text in config or [] if text not in files]]
    return [file_of(text) for text in files], [*overrides, *([f"engine={engine}"] if engine else [])]
