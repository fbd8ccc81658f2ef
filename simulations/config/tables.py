"""TableFile: the rows, seeds and columns of a table that `fedpart table` makes from runs."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simulations.config.keys import Section, entry
from simulations.config.load import Config, kind_of, with_overrides
from simulations.config.messages import sentence
from simulations.config.shipped import CONFIGS, file_of
from simulations.config.yaml_files import read_extended, told
from simulations.errors import ConfigError

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
        ..., "by heading, where summary.json has it: test_accuracy, ensemble.nll, by_architecture.accuracy"
    )
    rows: dict[str, RowSection] = entry(..., "by label", min_length=1)

    def configured(
        self, label: str, seed: int, file: Path, out: Path, scale: str | None, overrides: list[str]
    ) -> Config:
        """The configuration of a run.

        What is said later wins: the configuration's own file, ``set``, the scale, the row, ``overrides``.
        """
        row = self.rows[label]
        if scale is not None and scale not in self.scales:
            known = ", ".join(self.scales) or "none"
            raise ConfigError(f"{file} has no scale {scale!r}; it has {known}.")
        data, files = read_extended(file.parent / (row.config or self.config))
        scaled = (self.scales[scale], row.scales.get(scale, {})) if scale else ({}, {})
        layers = (self.set, scaled[0], row.set, scaled[1])
        try:
            lines = [f"{key}={json.dumps(value)}" for layer in layers for key, value in layer.items()]
        except TypeError as error:  # YAML has dates
            raise ConfigError(
                f"{file}, row {label!r}: a value is of no kind that keys have ({error})."
            ) from None
        lines = [line.replace("{out}", str(out)).replace("{seed}", str(seed)) for line in lines]
        return with_overrides(
            data,
            [*lines, *overrides, f"seed={seed}"],
            f"{file}, row {label!r}",
            kind_of(data),
            [*files, file],
        )


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
