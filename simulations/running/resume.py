"""What a resumed run may change: nothing that decides its numbers, except that it may go on for longer."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from simulations.config.load import AnyConfig, ConfigError, ExperimentConfig, load_config, with_overrides
from simulations.config.yaml_files import key_of
from simulations.folders.cell import differences
from simulations.folders.run_directory import CONFIG, saved_config
from simulations.running.precision import choose_precision


def resumed_config(
    folder: str | Path, file: str | None, overrides: list[str], kind: type[AnyConfig] = ExperimentConfig
) -> AnyConfig:
    """The configuration to continue the run in ``folder`` with: its own, or ``file``, with settings."""
    wanted: AnyConfig = _saved(folder, kind)  # refuses what is no run of that kind before the file is read
    if file is not None:
        wanted = load_config(file, overrides, kind)
    elif overrides:
        wanted = with_overrides(wanted.resolved(), overrides, str(Path(folder) / CONFIG), kind)
    wanted = choose_precision(wanted, folder)
    return continued_config(folder, wanted, set(map(key_of, overrides)))


def continued_config(folder: str | Path, wanted: AnyConfig, given: Collection[str] = ()) -> AnyConfig:
    """The configuration with which the run in ``folder`` goes on if ``wanted`` is asked for.

    The user has named the keys ``given``, which may change where they do not decide the numbers.
    """
    saved = _saved(folder, type(wanted))
    total, decisive = saved.clock.total, saved.deciding("numbers")
    changes: dict[str, Any] = {}
    for key, then, now in differences(saved.resolved(), wanted.resolved()):
        if key.partition(".")[0] not in decisive:
            if key in given and "." not in key:  # a file's value is not a wish to change it
                changes[key] = now
        elif key == total and now > then and saved.may_grow:
            changes[key] = now
        else:
            may = f"(only {total} may grow)" if saved.may_grow else f"(its {total} are part of its schedule)"
            raise ConfigError(
                f"The run in {folder} has {key} = {then!r}, not {now!r}; resume it as it is {may}, or start "
                f"a new run with --out."
            )
    return type(saved).from_dict({**saved.resolved(), **changes})


def _saved(folder: str | Path, kind: type[AnyConfig]) -> AnyConfig:
    saved = saved_config(folder)
    if not isinstance(saved, kind):
        raise ConfigError(
            f"The run in {folder} is of {saved.clock.kind}; continue it with fedpart {saved.clock.command} "
            f"--resume {folder}."
        )
    return saved
