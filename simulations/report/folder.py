"""What lies in a folder: the runs of one comparison, of several, or a single run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from simulations.config.load import Config, ConfigError, ExperimentConfig
from simulations.folders.cell import Cell, changed, deciding
from simulations.folders.run_directory import CONFIG, saved_config
from simulations.folders.run_images import in_short
from simulations.results.collect import collect
from simulations.results.comparison import Comparison
from simulations.results.curves import Run

Settings = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """The runs of one comparison, finished or not.

    Attributes:
        name: of its configuration; the folder's name if there is one comparison.
        config: of its first run, with the cell of the paper that the comparison names.
        methods: in the order in which they were compared.
        cells: the runs, by method and seed.
        runs: what they have recorded, by folder.
        notes: sentences about runs that are left out, or failed.
    """

    name: str
    config: ExperimentConfig
    methods: list[str]
    cells: list[Cell]
    runs: dict[Path, Run]
    notes: list[str] = field(default_factory=list)

    @cached_property
    def finished(self) -> dict[str, list[Run]]:
        """The finished runs by method."""
        return self._by_method(lambda cell: cell.finished())

    @cached_property
    def comparison(self) -> Comparison:
        """The table of the finished runs."""
        return collect(self.config, self.cells, self.finished)

    @property
    def shown(self) -> dict[str, list[Run]]:
        """Runs for curves, by method: the finished ones; of a method without any, those that are started."""
        started = self._by_method(lambda cell: bool(self.runs[cell.folder].metrics))
        return {method: self.finished[method] or started[method] for method in self.methods}

    def _by_method(self, wanted: Callable[[Cell], bool]) -> dict[str, list[Run]]:
        return {
            method: [
                self.runs[cell.folder] for cell in self.cells if cell.config.method == method and wanted(cell)
            ]
            for method in self.methods
        }


def find(folder: Path) -> list[Found]:
    """The comparisons in a folder; a single run is a comparison of one.

    Raises:
        ConfigError: there are no federated runs in it; one sentence.
    """
    if not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}; name one that fedpart compare or run has written.")
    if (folder / CONFIG).is_file():
        config = saved_config(folder)
        if not isinstance(config, ExperimentConfig):
            raise ConfigError(
                f"The run in {folder} is a centralised one; a report shows federated runs, of fedpart run or "
                f"compare."
            )
        cells, runs = [_cell(config, folder)], {folder: Run.load(folder)}
        return [Found(folder.resolve().name, config, [config.method], cells, runs)]
    names = _written(folder).get("comparisons", [])
    names += sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name not in names)
    found = [_comparison(folder)] + [_comparison(folder / name) for name in names]
    comparisons = [entry for entry in found if entry is not None]
    if not comparisons:
        raise ConfigError(
            f"{folder} holds no federated run and no comparison; name a folder that fedpart compare or run "
            f"has written."
        )
    return comparisons


def _comparison(folder: Path) -> Found | None:
    """The runs in ``<method>/seed<k>/``; None if there are none."""
    cells, runs, notes, written = [], {}, [], _written(folder)
    for file in sorted(folder.glob(f"*/seed*/{CONFIG}")):
        try:
            config = saved_config(file.parent)
            runs[file.parent] = Run.load(file.parent)
        except ConfigError as error:
            notes.append(f"A run is left out: {error}")
            continue
        if isinstance(config, ExperimentConfig):
            cells.append(_cell(config, file.parent))
    if not cells:
        return None
    cells = _alike(cells, notes)
    rows = [row["method"] for row in written.get("rows", [])]
    own = dict.fromkeys(cell.config.method for cell in cells)
    methods = [*(method for method in rows if method in own), *(m for m in own if m not in rows)]
    cells.sort(key=lambda cell: (methods.index(cell.config.method), cell.config.seed))
    notes += [
        f"Failed: {failure['method']}, seed {failure['seed']}: {failure['error']}"
        for failure in written.get("failures", [])
    ]
    config = cells[0].config
    published = written.get("config", {}).get("published", config.published)
    config = ExperimentConfig.from_dict(config.resolved() | {"published": published})
    return Found(folder.resolve().name, config, methods, cells, runs, notes)


def _alike(cells: Sequence[Cell], notes: list[str]) -> list[Cell]:
    """The cells that one table may average: all have the same settings, those of a method its options too.

    They are those with the settings that most have; on each of the others ``notes`` gets a sentence.
    """
    cells = _most(cells, _shared, notes)
    return [
        cell
        for method in dict.fromkeys(cell.config.method for cell in cells)
        for cell in _most([cell for cell in cells if cell.config.method == method], _options, notes)
    ]


def _most(cells: Sequence[Cell], settings: Callable[[Config], Settings], notes: list[str]) -> list[Cell]:
    """The cells whose ``settings`` are the most frequent ones; of several, the first."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(json.dumps(settings(cell.config), sort_keys=True), []).append(cell)
    kept = max(groups.values(), key=len)
    for cell in cells:
        if cell not in kept:
            differing = in_short(changed(settings(cell.config), settings(kept[0].config)))
            notes.append(
                f"A run is left out: {cell.folder} has other settings than {kept[0].folder} ({differing})."
            )
    return kept


def _shared(config: Config) -> Settings:
    own = {"method", "seed", "method_options"}
    return {key: value for key, value in deciding(config).items() if key not in own}


def _options(config: Config) -> Settings:
    return {"method_options": config.method_options.get(config.method, {})}


def _cell(config: ExperimentConfig, folder: Path) -> Cell:
    return Cell(f"{config.method}, seed {config.seed}", config, folder)


def _written(folder: Path) -> dict[str, Any]:
    """What the comparison has left in its folder when it ended; empty if it has not, or is about to."""
    try:
        found = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
