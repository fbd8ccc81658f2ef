"""Cell: one run among others, what its folder holds, and whether that is what is asked for."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedpart.checks import require
from fedpart.data import OWN_FILES
from simulations.config.load import AnyConfig, Config
from simulations.errors import ConfigError
from simulations.folders.contents import SWEEPS
from simulations.folders.data_files import KnownData, changed_data, in_short
from simulations.folders.run_directory import CONFIG, SUMMARY, holds_run, read_summary, saved_config


@dataclass(frozen=True)
class Cell:
    """One run among others: what it is called, its configuration (see :func:`alone`), and its folder."""

    name: str
    config: Config
    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", alone(self.config))

    def state(self, known: KnownData | None = None) -> Literal["new", "started", "finished"]:
        """What its folder holds; ``known`` data have been listed for other cells."""
        if not holds_run(self.folder):
            return "new"
        differing = changed(saved_config(self.folder).resolved(), deciding(self.config))
        differing += changed_data(self.folder, (KnownData() if known is None else known).of(self.config))
        if differing:
            fault = f"{self.folder} holds a run with other settings ({in_short(differing)})"
            raise ConfigError(f"{fault}; choose another folder with --out, or delete this one.")
        return "finished" if self.finished() else "started"

    def finished(self) -> bool:
        """Whether its folder holds the outcome of the whole run."""
        return read_summary(self.folder, self.config) is not None


def alone(config: AnyConfig) -> AnyConfig:
    """The configuration of a run among others: no other method is run beside it, also when it goes on."""
    return config.model_copy(update={"beside": None}) if hasattr(config, "beside") else config


def folder_name(text: str) -> str:
    """A text as the name of a folder; it may be empty, and two texts may have one."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip("-.")


def refuse_other_sweep(out: Path, written: str) -> None:
    """Refuse a folder with a run, or with what another kind of sweep has ``written`` there."""
    for name, kind in {CONFIG: "run or a search", **SWEEPS, SUMMARY: "selection"}.items():
        held = name != written and (out / name).exists()
        require(not held, f"{out} holds a {kind}; choose another folder with --out.", ConfigError)


def row_folder(out: Path, row: str, seed: int) -> Path:
    """Of the run of a table's row."""
    return out / folder_name(row).lower() / f"seed{seed}"


def deciding(config: Config) -> dict[str, Any]:
    """The keys that can change a number of a comparison's table, the seconds among them."""
    folder_is_data = config.data in OWN_FILES or ":" in config.data  # then other folders are other data
    folder = {"data_dir": config.data_dir} if folder_is_data else {}
    return config.deciding("numbers", "course") | folder


def changed(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """What differs between two configurations, as ``rounds: 6 there, 8 here``, for every key of ``here``."""
    differing = differences({key: there.get(key) for key in here}, here)
    return [f"{key}: {before} there, {now} here" for key, before, now in differing]


def differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Keys with other values, ``a.b`` in a section that both have, and these values; None: not there."""
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from ((f"{key}.{rest}", *values) for rest, *values in differences(old, new))
        elif old != new:
            yield key, old, new
