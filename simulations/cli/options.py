"""How commands are declared: the options and arguments that several take, and who does what they say."""

import json
from collections.abc import Callable, Iterator
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpart.extras import need
from simulations.cli.guards import BAD_INPUT, fail, guarded
from simulations.config.yaml_files import CONFIGS, file_of, read_yaml, shipped
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


def _shipped(incomplete: str) -> list[str]:
    """Names of configurations that come with fedpart, for the shell; files are completed beside them."""
    return [name for name in shipped() if name.startswith(incomplete)]


def _keys(context: typer.Context, incomplete: str) -> list[str]:
    """Keys of a configuration for the shell, those of sections too, by the schema that comes with fedpart."""
    kind = "train" if context.info_name in ("train", "select", "retrain") else "run"
    schema = json.loads((CONFIGS / f"{kind}.schema.json").read_text())

    def keys(part: Any, before: str = "") -> Iterator[str]:
        for form in (part, *part.get("anyOf", ())):
            section = schema["$defs"].get(form.get("$ref", "").rpartition("/")[2], form)
            for name, inner in section.get("properties", {}).items():
                yield f"{before}{name}="
                yield from keys(inner, f"{before}{name}.")

    return [key for key in keys(schema) if key.startswith(incomplete)]


def _pairs(settings: list[str] | None) -> list[str] | None:
    """Refuse ``--set rounds 3``, of which 3 would be a configuration, and ``--set "rounds: 3"``."""
    for text in settings or []:
        if "=" not in text:
            key, _, value = (part.strip() for part in text.partition(":"))
            example = f"--set {key or 'rounds'}={value or 20}"
            fail(f"--set {text}: write key=value without a space, for instance {example}.", BAD_INPUT)
    return settings


Configs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG.yaml",
        help="The experiment: a file, or a name that fedpart configs lists.",
        callback=_there,
        autocompletion=_shipped,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        callback=_pairs,
        autocompletion=_keys,
        help="Change a key of it, e.g. rounds=20.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder for the results; a new one in runs/ if not given.")
]
Trust = Annotated[
    bool,
    typer.Option("--trust-code", help="Run code that the folder names; only if you trust who has made it."),
]
Resume = Annotated[Path | None, typer.Option("--resume", help="Folder of a run to continue.")]
Result = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]
More = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="As with --set.")]


def commands_of(
    app: typer.Typer, module: str, *extra: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a command; its function in ``module`` is imported late, for ``--help`` loads no torch."""

    def command(declared: Callable[..., None]) -> Callable[..., None]:
        @app.command()
        @wraps(declared)
        def typed(**given: Any) -> None:
            trust, resume = given.pop("trust_code", None), given.get("resume")
            places = [given.get(name) for name in ("out", "resume", "run", "folder", "to", "json")]
            place = next((path for path in places if isinstance(path, Path)), None)

            def work() -> None:
                if extra:
                    need(*extra)
                getattr(import_module(module), declared.__name__)(**_with_overrides(given))

            if "resume" not in given:
                guarded(work, place, trust)
            elif resume is None:
                guarded(work, place)
            else:  # who has written its configuration need not say that its code is trusted
                from simulations.folders.resolved import is_own

                guarded(work, place, trust or is_own(resume))

        return typed

    return command


def _with_overrides(given: dict[str, Any]) -> dict[str, Any]:
    if "settings" not in given:
        return given
    plain = {key: given[key] for key in given if key not in ("config", "settings", "engine", "more")}
    files, overrides = several(given.get("config"), given["settings"], given.get("engine"))
    plain |= {"files": files} if "config" in given else {}
    return {**plain, "overrides": [*overrides, *(given.get("more") or [])]}


def single(files: list[str]) -> str | None:
    """The configuration of a command that takes one; None: there is none."""
    if len(files) > 1:
        fail(f"One configuration at a time, please: {', '.join(files)}.", BAD_INPUT)
    return files[0] if files else None


def several(
    config: list[str] | None, settings: list[str] | None, engine: str | None = None
) -> tuple[list[str], list[str]]:
    """The configurations, and the settings: ``--set a=1 b=2`` leaves b=2 among the arguments."""
    files = [text for text in config or [] if "=" not in text or Path(text).exists()]
    overrides = [*(settings or []), *[text for text in config or [] if text not in files]]
    return [file_of(text) for text in files], [*overrides, *([f"engine={engine}"] if engine else [])]
