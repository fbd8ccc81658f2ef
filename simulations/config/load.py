"""Configurations of experiments, and files of tables, read from YAML and ``key=value`` settings."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError, field_validator

from fedpart.federated.report import RoundReport
from fedpart.registry import foreign, nearest
from simulations.config.centralised import EVIDENCE_NAMES as EVIDENCE_NAMES
from simulations.config.centralised import TrainingConfig
from simulations.config.federated import ExperimentConfig
from simulations.config.keys import Section, entry
from simulations.config.messages import sentence
from simulations.config.shared import Config
from simulations.config.yaml_files import CONFIGS, file_of, parsed, put, read_extended, told
from simulations.errors import ConfigError as ConfigError

AnyConfig = TypeVar("AnyConfig", bound=Config)
PSI = "hyperparameters"  # the section of which only what is written is on


def load_config(
    path: str | Path, overrides: Sequence[str] = (), kind: type[AnyConfig] = ExperimentConfig
) -> AnyConfig:
    """Read a YAML file and those that it extends, and apply settings like ``"server.learning_rate=0.01"``."""
    data, files = read_extended(Path(path))
    return with_overrides(data, overrides, told(files), kind, files)


def kind_of(data: dict[str, Any]) -> type[Config]:
    """The kind of experiment that plain data describe: centralised if they say how many iterations."""
    return TrainingConfig if TrainingConfig.clock.total in data else ExperimentConfig


def with_overrides(
    data: dict[str, Any], overrides: Sequence[str], source: str, kind: type[AnyConfig],
    files: Sequence[Path] = (), values: Sequence[tuple[str, Any]] = (),
) -> AnyConfig:  # fmt: skip
    """As :func:`load_config`, from plain data that came from ``files``, with ``values`` of keys before the
    ``overrides``; ``data`` is changed."""
    default = kind.model_fields[PSI].default
    changes = [(*pair, source) for pair in values] + [(*parsed(text), f"--set {text}") for text in overrides]
    for key, value, said in changes:
        if key.startswith(f"{PSI}."):
            data.setdefault(PSI, default.model_dump(mode="json"))
        put(data, key, value, said)
    keys = " ".join(f"--set {override}" for override in overrides)
    for key in ("data_dir", "code_dir", "psi_from", "devices"):
        if isinstance(data.get(key), str):
            data[key] = str(Path(data[key]).expanduser().absolute())
    if data.get("code_dir") is None:  # the folder of the first of the files that has such a module beside it
        modules = {re.split("[.:]", name)[0] for name in foreign(data)}
        for folder in dict.fromkeys(file.resolve().parent for file in files):
            if any(PathFinder.find_spec(module, [str(folder)]) for module in modules):
                data["code_dir"] = str(folder)
                break
    return kind.from_dict(data, f"{source}{' with ' + keys if keys else ''}")


def with_values(config: AnyConfig, values: Mapping[str, Any], source: str) -> AnyConfig:
    """``config`` with other values of some keys, such as ``local.epochs``; ``source`` is for messages."""
    data = config.resolved()
    for key, value in values.items():
        put(data, key, value, source)
    return type(config).from_dict(data, source)


SHIPPED = CONFIGS / "tables"


class RowSection(Section):
    """A row: what distinguishes its runs, and what is put beside them."""

    config: str | None = entry(None, "another configuration than the table's, relative to the table's file")
    set: dict[str, Any] = entry(
        {}, "keys of the configuration and their values, as with --set; {out} and {seed} are filled in"
    )
    scales: dict[str, dict[str, Any]] = entry({}, "what a scale of the table means for this row besides")
    given: dict[str, str] = entry({}, "texts by column that come from elsewhere, e.g. a paper's numbers")


class TableFile(Section):
    """The rows, seeds and columns of a table."""

    title: str = entry(..., "what the table shows, a sentence")
    config: str = entry(..., "the configuration that rows begin with, relative to this file")
    seeds: tuple[int, ...] = entry(..., "a run of every row for each of them", min_length=1)
    set: dict[str, Any] = entry({}, "keys of the configuration and their values, for all rows")
    scales: dict[str, dict[str, Any]] = entry({}, "more of them by name, which --scale chooses")
    columns: dict[str, str] = entry(
        ...,
        "by heading, where summary.json has it: test_accuracy, ensemble.nll, by_architecture.accuracy; or a "
        "metric at the bytes, up and down, of the run of a seed with the fewest: val_accuracy@bytes",
    )
    rows: dict[str, RowSection] = entry(..., "by label", min_length=1)

    @field_validator("columns")
    @classmethod
    def _at_bytes(cls, columns: dict[str, str]) -> dict[str, str]:
        known = [f"{f.name}@bytes" for f in fields(RoundReport) if f.type in ("float", "float | None")]
        for path in columns.values():
            if "@" in path and path not in known:
                raise ValueError(f"no round has {path!r}: {nearest(path, known)}")
        return columns

    def configured(
        self, label: str, seed: int, file: Path, out: Path, scale: str | None, overrides: list[str]
    ) -> Config:
        """A run's configuration; later wins: its own file, ``set``, the scale, the row, ``overrides``."""
        row = self.rows[label]
        if scale is not None and scale not in self.scales:
            known = ", ".join(self.scales) or "none"
            raise ConfigError(f"{file} has no scale {scale!r}; it has {known}.")
        data, files = read_extended(file.parent / (row.config or self.config))
        scaled = (self.scales[scale], row.scales.get(scale, {})) if scale else ({}, {})
        layers = (self.set, scaled[0], row.set, scaled[1])
        try:
            json.dumps(layers)
        except TypeError as error:  # YAML has dates
            raise ConfigError(
                f"{file}, row {label!r}: a value is of no kind that keys have ({error})."
            ) from None
        words = {"{out}": str(out), "{seed}": str(seed)}
        values = [(key, _filled(value, words)) for layer in layers for key, value in layer.items()]
        last, source = [*overrides, f"seed={seed}"], f"{file}, row {label!r}"
        return with_overrides(data, last, source, kind_of(data), [*files, file], values)


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    """A value with ``words`` in place of what stands for them, in its texts."""
    if isinstance(value, dict):
        return {key: _filled(part, words) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, words) for part in value]
    for name, text in words.items() if isinstance(value, str) else ():
        value = value.replace(name, text)
    return value


def table_file(name: str) -> Path:
    """The file of that path, or the shipped one of that name."""
    for path in (Path(name), SHIPPED / f"{name}.yaml", Path(file_of(name))):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.yaml")))
    raise ConfigError(f"There is no table {name}; give a file, or one of {known}.")


def read_table(file: Path) -> TableFile:
    """What a table's file says."""
    data, files = read_extended(file)
    try:
        return TableFile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{told(files)}: {sentence(error, TableFile)}") from None
