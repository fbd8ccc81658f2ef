"""The resolved configuration in a run's folder: with a checksum, and remembered by whoever has written it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fedpart.registry import admit, foreign, trusting
from fedpart.training.files import remembered, replace
from simulations.config.load import Config, kind_of
from simulations.config.yaml_files import as_yaml, read_yaml
from simulations.errors import ConfigError
from simulations.folders.contents import CONFIG, named, run_name, unnamed


def write_config(folder: Path, config: Config, name: str | None) -> None:
    """Write a configuration into a folder, under the line that names its run, see :func:`.named`.

    If it names code, its checksum is also kept in the user's own state: see :func:`is_own`.
    """
    text = as_yaml(config.resolved(), 110, None)
    replace(folder / CONFIG, lambda file: file.write(named(text, name).encode()))
    if any(foreign(config.resolved())):
        with suppress(OSError, RuntimeError):  # no home: resuming asks for --trust-code then
            record = _record(text.encode())
            record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            record.touch()


def saved_config(path: str | Path) -> Config:
    """The configuration of the run in a folder, of whatever kind that is; see :func:`.trusting`.

    Raises:
        ConfigError: no run is there, its configuration names code that is not trusted, is damaged or does not
            fit this version.
    """
    file = Path(path) / CONFIG
    if not file.is_file():
        raise ConfigError(
            f"{path} holds no run (there is no {CONFIG}); fedpart run CONFIG --out DIR makes one, and what "
            f"federate() has left is continued by its resume=True."
        )
    data = read_yaml(file)
    kind = kind_of(data)
    with trusting(None):
        try:
            admit(data)
        except ValueError as error:
            raise ConfigError(f"{file}: {error}") from None
        named_run, config = run_name(path), kind.from_dict(data, str(file))
        if named_run is None and (lost := kind.model_fields.keys() - data.keys()):
            raise ConfigError(f"{file} is damaged: it has no {min(lost)}; put it back as it was.")
        return config


def is_own(path: str | Path) -> bool:
    """Whether this user has written the configuration in a folder, to the byte, and on this machine."""
    try:
        return _record(unnamed((Path(path) / CONFIG).read_bytes())).exists()
    except (OSError, RuntimeError):
        return False


def _record(text: bytes) -> Path:
    return remembered("runs", text)
