"""Contents: what the files of a run's folder hold, checked when they are read."""

import hashlib
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from fedpart.checks import require
from fedpart.training.files import SEAL, read_lines, read_object, seal
from simulations.config.shared import Config
from simulations.errors import ConfigError

CONFIG, METRICS, SUMMARY, STATE = "config.yaml", "metrics.jsonl", "summary.json", "state.safetensors"
COMPARISON, TABLE = "comparison.json", "table.md"
SWEEPS = {COMPARISON: "comparison", TABLE: "table"}  # what they leave in their folders
HASH = "state_sha256"  # in the summary: of STATE
_NAMED = re.compile(rb"# run ([0-9a-f]{16}), crc32 ([0-9a-f]{8}) of what follows\n")
_FILES = (".yaml", ".json", ".jsonl", ".pt", ".safetensors", ".log")  # that a folder of a run has
_SEALED = re.compile(rb'"seal": "[0-9a-f]{8}"\s*}\s*$', re.MULTILINE)


def new_name() -> str:
    """A name for a run: 16 hex digits."""
    return os.urandom(8).hex()


def named(text: str, name: str | None) -> str:
    """The text of a configuration under the line that names its run; no line if it has no name."""
    return text if name is None else f"# run {name}, crc32 {seal(text, name)} of what follows\n{text}"


def unnamed(content: bytes) -> bytes:
    """A configuration without the line that names its run."""
    return content[line.end() :] if (line := _NAMED.match(content)) else content


def run_name(path: str | Path) -> str | None:
    """The name of the run in a folder, from which its files' seals follow; None: it is from before them."""
    file = Path(path) / CONFIG
    for entry in [*os.scandir(path)] if os.path.isdir(path) else ():  # a run under way moves its files
        if entry.name.endswith(_FILES) and not entry.is_file() and os.path.lexists(entry.path):
            fault = f"{entry.path} is no regular file but a folder, pipe, device, socket or a link to"
            raise ConfigError(f"{fault} nothing; remove it, and put the file back as it was.")
    content = file.read_bytes() if file.is_file() else b""
    if (line := _NAMED.match(content)) is None:
        others = (file.with_name(name) for name in (SUMMARY, METRICS))
        told = next((one for one in others if one.is_file() and _SEALED.search(one.read_bytes())), None)
        if content and told is not None:  # runs from before names have no seals
            raise ConfigError(
                f"{file} has lost its first line, which names the run that {told.name} has seals of; put "
                f"the file back as it was. The weights are whole: safetensors reads {STATE} of a finished "
                f"run, and torch.load checkpoint.pt."
            )
        return None
    name, checksum = (part.decode() for part in line.groups())
    if seal(content[line.end() :].decode(errors="replace"), name) != checksum:
        remedy = "put it back as it was. What decides no numbers is changed with --set"
        raise ConfigError(f"{file} is damaged, or was changed by hand; {remedy}.")
    return name


def read_metrics(path: str | Path, whole: bool = False) -> list[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl``; a last line that was torn by a crash is left out."""
    file = Path(path) / METRICS
    name = run_name(path)
    if not file.exists():
        return []
    try:
        lines = read_lines(file.read_bytes(), name, partial(_check_line, whole=whole))
    except ValueError as error:
        line, _, reason = str(error).partition(": ")
        remedy = f"{keeps_weights(path)}"
        raise ConfigError(f"{line.capitalize()} of {file} is damaged ({reason}); {remedy}.") from None
    for line in lines:
        line.pop(SEAL, None)
    return lines


def keeps_weights(path: str | Path) -> str:
    """What to do about damaged metrics."""
    return (
        f"put the file back as it was, or delete it and continue the run with --resume "
        f"{quote(str(path))}: the weights are in the checkpoint, and only the numbers of these lines are lost"
    )


def read_summary(path: str | Path, config: Config | None = None) -> dict[str, Any] | None:
    """A finished run's ``summary.json``; None if the run is not finished, or shorter than ``config`` says."""
    file = Path(path) / SUMMARY
    name = run_name(path)
    if not file.exists():
        return None
    try:
        summary = read_object(file.read_bytes(), name)
        _check(_Summary, summary)
    except ValueError as error:
        remedy = f"delete it and continue the run with --resume {quote(str(path))}, which makes it anew"
        raise ConfigError(f"{file} is damaged ({error}); {remedy}.") from None
    summary.pop(SEAL, None)
    if config is None:
        return summary
    if summary.get(config.clock.total, 0) < config.length:
        return None
    if HASH in summary:
        read_state(path, summary)
    return summary


def read_state(path: str | Path, summary: Mapping[str, Any]) -> bytes:
    """The content of a finished run's ``state.safetensors``, that of which the summary has the hash."""
    file = Path(path) / STATE
    content = file.read_bytes() if file.is_file() else b""
    if summary.get(HASH) not in (None, hashlib.sha256(content).hexdigest()):
        raise ConfigError(
            f"{file} cannot be read as what {SUMMARY} was written for (it is damaged, of another run, or of "
            f"rounds that are not through); put it back, or delete {SUMMARY} and go on with --resume "
            f"{quote(str(path))}, which makes both anew from the checkpoint."
        )
    return content


_Number = float | None  # what is not finite is null
_TYPES: dict[Any, str] = {  # of keys, where they are there
    str: "method engine execution precision state_sha256",
    int: "round iteration rounds iterations replies seed data_seed num_classes examples skipped_clients "
    "rounds_without_step upload_bytes download_bytes evaluation_bytes",
    float: "seconds client_seconds simulated_seconds upload_ratio delta",
    bool: "stepped",
    int | None: "workers",
    str | None: "git_commit",
    _Number: "train_loss lml epsilon val_accuracy val_nll test_accuracy test_nll client_accuracy client_nll",
    list[int]: "cohort",
    list[str]: "psi_learned psi_remarks psi_held classes client_names",
    list[dict[str, Any]]: "skipped stages subnetworks",
    dict[str, int]: "refused psi_alarms",
    dict[str, _Number]: "psi psi_initial",
    dict[str, str | None]: "versions",
    dict[str, Any] | None: "clip preprocessing",
}


def _model(**types: Any) -> type[BaseModel]:
    """Of plain data: these keys, where they are there, have values of these types."""
    fields: dict[str, Any] = {name: (kind, None) for name, kind in types.items()}
    return create_model("Contents", __config__=ConfigDict(extra="allow", strict=True), **fields)


_KEYS = {name: kind for kind, names in _TYPES.items() for name in names.split()}
_Summary = _model(**_KEYS, inputs=_model(form=Any, kinds=dict[str, list[Any]]))
_OF_LINES = {"psi": _model(raw=dict[str, Any], physical=_KEYS["psi"]), "psi_alarms": list[dict[str, Any]]}
_Line = _model(**_KEYS | _OF_LINES)
_NEEDED = {
    "round": ("seconds", "upload_bytes", "download_bytes", "cohort", "skipped", "psi"),
    "iteration": ("seconds", "lml", "psi"),
}


def _check_line(line: Mapping[str, Any], whole: bool) -> None:
    _check(_Line, line)
    clock = next((clock for clock in _NEEDED if clock in line), None)
    require(clock is not None, "it has no round and no iteration")
    missing = [key for key in _NEEDED[clock] if key not in line]
    if whole and missing:
        raise ValueError(f"it has no {missing[0]}")


def _check(model: type[BaseModel], content: Mapping[str, Any]) -> None:
    try:
        model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
