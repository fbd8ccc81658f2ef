"""Configurations of experiments, read from YAML and ``key=value`` settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from simulations.config.base import Config, kind_of
from simulations.config.federated import ExperimentConfig
from simulations.config.file import ConfigError, apply_override, read_extended
from simulations.config.training import TrainingConfig

__all__ = [
    "AnyConfig",
    "Config",
    "ConfigError",
    "ExperimentConfig",
    "TrainingConfig",
    "kind_of",
    "load_config",
    "with_overrides",
]

AnyConfig = TypeVar("AnyConfig", bound=Config)
_PATHS = ("data_dir", "psi_from")


def load_config(
    path: str | Path, overrides: Sequence[str] = (), kind: type[AnyConfig] = ExperimentConfig
) -> AnyConfig:
    """Read a YAML file and those that it extends, and apply settings like ``"server.learning_rate=0.01"``.

    The values of settings are YAML. A relative ``data_dir`` or ``psi_from`` is taken from the current folder
    and made absolute.

    Args:
        path: of the file.
        overrides: ``key=value`` settings.
        kind: what the file must describe: :class:`ExperimentConfig` or :class:`TrainingConfig`.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or a key or value does not fit; one sentence.
    """
    data, source = read_extended(Path(path))
    return with_overrides(data, overrides, source, kind)


def with_overrides(
    data: dict[str, Any], overrides: Sequence[str], source: str, kind: type[AnyConfig]
) -> AnyConfig:
    """As :func:`load_config`, from plain data that ``source`` names in messages; ``data`` is changed."""
    for override in overrides:
        apply_override(data, override)
    keys = " ".join(f"--set {override}" for override in overrides)
    for key in _PATHS:
        if isinstance(data.get(key), str):
            data[key] = str(Path(data[key]).expanduser().absolute())
    return kind.from_dict(data, f"{source}{' with ' + keys if keys else ''}")
