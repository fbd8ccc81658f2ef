"""The resolved configuration in a folder: with a checksum, remembered by who has written it; and its lock."""

import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from fedpart.registry import admit, foreign, home, installed, trusting, vouch
from fedpart.training.files import parsed, remembered, replace
from simulations.config.gone import translated
from simulations.config.load import Config, kind_of
from simulations.config.yaml_files import as_yaml, read_yaml
from simulations.errors import ConfigError
from simulations.folders.contents import CONFIG, named, run_name, unnamed


def write_config(folder: Path, config: Config, name: str | None, own: bool) -> None:
    """Write a configuration under the line that names its run; of the user's ``own``, checksums too."""
    data = config.resolved()
    text = as_yaml(data, 110, None)
    replace(folder / CONFIG, lambda file: file.write(named(text, name).encode()))
    names = [*foreign(data)]
    if names and own:
        with suppress(OSError, RuntimeError):  # no home: resuming asks for --trust-code then
            record, content = _record(text.encode()), json.dumps(_code(names, data["code_dir"])).encode()
            record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace(record, lambda file: file.write(content))


def saved_config(path: str | Path) -> Config:
    """The configuration of the run in a folder, of whatever kind that is; see :func:`.trusting`."""
    file = Path(path) / CONFIG
    if not file.is_file():
        fault = f"{path} holds no run (there is no {CONFIG}); fedpart run CONFIG --out DIR makes one,"
        raise ConfigError(f"{fault} and what federate() has left is continued by its resume=True.")
    data = read_yaml(file)
    with trusting(None):
        try:
            translated(data)
            admit(data)
        except ValueError as error:
            raise ConfigError(f"{file}: {error}") from None
        kind = kind_of(data)
        if any(foreign(data)) and is_own(path):
            vouch(data)
        named_run, config = run_name(path), kind.from_dict(data, str(file))
        if named_run is None and (lost := kind.model_fields.keys() - data.keys()):
            raise ConfigError(f"{file} is damaged: it has no {min(lost)}; put it back as it was.")
        return config


def is_own(path: str | Path) -> bool:
    """Whether this user made the run here: configuration and code that it names are the same bytes."""
    try:
        code = parsed(_record(unnamed((Path(path) / CONFIG).read_bytes())).read_bytes())
        return all(_digest(file) == digest for file, digest in code.items())
    except (OSError, RuntimeError, ValueError, AttributeError):
        return False


def _code(names: Iterable[str], code_dir: str | None) -> dict[str, str]:
    """Checksums of the files of named modules, and of all that was imported from where these lie."""
    modules = {name.partition(":")[0] for name in names}
    files = set()
    for module in modules:
        with suppress(ImportError, ValueError, AttributeError):  # a text that is no module's name
            files.add(getattr(find_spec(module), "origin", None))
    places = {home(module) for module in modules if not installed(module)}
    places |= set() if code_dir is None else {os.path.realpath(code_dir)}
    imported = [(name.partition(".")[0], module) for name, module in sys.modules.items()]
    tops = {top for top in {top for top, _ in imported} if home(top) in places and not installed(top)}
    files |= {getattr(module, "__file__", None) for top, module in imported if top in tops}
    return {file: _digest(file) for file in files if file is not None and os.path.isfile(file)}


def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _record(text: bytes) -> Path:
    return remembered("runs", text)


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Keep other processes out of a folder, until the end or until this process dies; whether it can."""
    descriptor = lock(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def lock(path: Path) -> int | None:
    """Keep other processes out of the folder until closed, or until this process dies."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            remedy = "wait for it, or choose another folder"
            raise FileExistsError(f"Another process is running in {path}; {remedy}.") from None
        return None  # a file system without locks
    return descriptor
