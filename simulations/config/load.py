"""Configurations of experiments, read from YAML and ``key=value`` settings."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TypeVar

from fedpart.registry import foreign
from simulations.config.centralised import EVIDENCE_NAMES as EVIDENCE_NAMES
from simulations.config.centralised import TrainingConfig
from simulations.config.federated import ExperimentConfig
from simulations.config.shared import Config
from simulations.config.yaml_files import apply_override, key_of, read_extended, told
from simulations.errors import ConfigError as ConfigError

AnyConfig = TypeVar("AnyConfig", bound=Config)
PSI = "hyperparameters"  # the section of which only what is written is on


def load_config(
    path: str | Path, overrides: Sequence[str] = (), kind: type[AnyConfig] = ExperimentConfig
) -> AnyConfig:
    """Read a YAML file and those that it extends, and apply settings like ``"server.learning_rate=0.01"``.

    The values of settings are YAML. A relative ``data_dir``, ``code_dir``, ``psi_from`` or ``devices.trace``
    is taken from the current folder and made absolute. ``kind`` is what the file must describe.
    """
    data, files = read_extended(Path(path))
    return with_overrides(data, overrides, told(files), kind, files)


def kind_of(data: dict[str, Any]) -> type[Config]:
    """The kind of experiment that plain data describe: centralised if they say how many iterations."""
    return TrainingConfig if TrainingConfig.clock.total in data else ExperimentConfig


def with_overrides(
    data: dict[str, Any],
    overrides: Sequence[str],
    source: str,
    kind: type[AnyConfig],
    files: Sequence[Path] = (),
) -> AnyConfig:
    """As :func:`load_config`, from plain data that ``source`` names in messages; ``data`` is changed.

    Settings change one key of psi: where the data say nothing of it, they are laid over its default.
    ``files`` are those that the data come from: a ``package.module:callable`` is looked for beside them.
    """
    default = kind.model_fields[PSI].default
    for override in overrides:
        if key_of(override).startswith(f"{PSI}."):
            data.setdefault(PSI, default.model_dump(mode="json"))
        apply_override(data, override)
    keys = " ".join(f"--set {override}" for override in overrides)
    places = [(data, "data_dir"), (data, "code_dir"), (data, "psi_from"), (data.get("devices"), "trace")]
    for section, key in places:
        if isinstance(section, dict) and isinstance(section.get(key), str):
            section[key] = str(Path(section[key]).expanduser().absolute())
    if data.get("code_dir") is None and (folder := _beside(data, files)) is not None:
        data["code_dir"] = str(folder)
    return kind.from_dict(data, f"{source}{' with ' + keys if keys else ''}")


def with_values(config: AnyConfig, values: Mapping[str, Any], source: str) -> AnyConfig:
    """``config`` with other values of some keys, such as ``local.epochs``; ``source`` is for messages."""
    data = config.resolved()
    for key, value in values.items():
        apply_override(data, f"{key}={json.dumps(value)}")
    return type(config).from_dict(data, source)


def _beside(data: dict[str, Any], files: Sequence[Path]) -> Path | None:
    """The folder of the first of the files that has a module beside it which ``data`` name."""
    modules = {re.split("[.:]", name)[0] for name in foreign(data)}
    for folder in dict.fromkeys(file.resolve().parent for file in files):
        if any(PathFinder.find_spec(module, [str(folder)]) for module in modules):
            return folder
    return None
