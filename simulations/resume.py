"""What a resumed run may change: nothing that decides its numbers, except that it may go on for longer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulations.config import RIM, ConfigError, ExperimentConfig, load_config
from simulations.run_directory import CONFIG, saved_config


def resumed_config(folder: str | Path, file: str | None, overrides: list[str]) -> ExperimentConfig:
    """The configuration to continue the run in ``folder`` with.

    Args:
        folder: of the run.
        file: a configuration given besides, or None: the run's own.
        overrides: ``key=value`` settings.

    Raises:
        ConfigError: no run is there, or the configuration differs in more than a larger ``rounds`` and what
            does not decide the numbers (engine, workers, data_dir, checkpoint_every); names a difference.
    """
    saved = saved_config(folder)
    wanted = load_config(file or Path(folder) / CONFIG, overrides)
    then, now = _flat(saved.resolved()), _flat(wanted.resolved())
    given = {override.partition("=")[0].strip() for override in overrides}
    changes: dict[str, Any] = {}
    for key in sorted(then.keys() | now.keys()):
        if then.get(key) == now.get(key):
            continue
        if key in RIM:
            if key in given:  # a file's value is not a wish to change it
                changes[key] = now[key]
        elif key == "rounds" and now[key] > then[key]:
            changes[key] = now[key]
        else:
            raise ConfigError(
                f"The run in {folder} has {key} = {then.get(key)!r}, not {now.get(key)!r}; resume it as it "
                f"is (only rounds may grow), or start a new run with --out."
            )
    return ExperimentConfig.from_dict({**saved.resolved(), **changes})


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
