"""What lies in a folder: the runs of a comparison, or a single run; in words and tables too."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedpart.checks import require
from fedpart.training.files import parsed
from simulations.config.load import Config, ConfigError, ExperimentConfig
from simulations.folders.cell import changed, deciding
from simulations.folders.data_files import in_short
from simulations.folders.run_directory import BESIDE, CONFIG, read_summary
from simulations.results.comparison import Comparison, collect
from simulations.results.curves import Run
from simulations.results.scores import counted, privacy_text

Settings = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """The runs of one comparison, finished or not."""

    name: str  # of its folder
    config: ExperimentConfig  # of its first run, with the cell of the paper that the comparison names
    methods: list[str]  # in the order in which they were compared
    runs: list[Run]  # sorted by method and seed
    notes: list[str] = field(default_factory=list)  # sentences about runs that are left out, or failed

    @cached_property
    def finished(self) -> dict[str, list[Run]]:
        return self._by_method(lambda run: run.finished)

    @cached_property
    def comparison(self) -> Comparison:
        return collect(self.config, (run.config.seed for run in self.runs), self.finished)

    @property
    def shown(self) -> dict[str, list[Run]]:
        """Runs for curves, by method: the finished ones; of a method without any, those that are started."""
        started = self._by_method(lambda run: bool(run.metrics))
        return {method: self.finished[method] or started[method] for method in self.methods}

    @property
    def unfinished(self) -> list[str]:
        """Sentences on runs that are under way."""
        notes = []
        for method in self.methods:
            mine = [run for run in self.runs if run.config.method == method]
            if seeds := [str(run.config.seed) for run in mine if not run.finished]:
                drawn = "left out of the curves" if len(seeds) < len(mine) else "drawn as far as it is"
                plural = "s" if len(seeds) > 1 else ""
                notes.append(f"{method}, seed{plural} {', '.join(seeds)}: not finished; {drawn}.")
        return notes

    def _by_method(self, wanted: Callable[[Run], bool]) -> dict[str, list[Run]]:
        chosen = [run for run in self.runs if wanted(run)]
        return {method: [run for run in chosen if run.config.method == method] for method in self.methods}


def find(folder: Path) -> Found:
    """The comparison in a folder; a single run is a comparison of one."""
    if not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}; name one that fedpart compare or run has written.")
    if (folder / CONFIG).is_file():
        runs = [Run.load(folder)]
        if isinstance(runs[0].config, ExperimentConfig) and read_summary(folder / BESIDE) is not None:
            runs.append(Run.load(folder / BESIDE))
        methods = [run.config.method for run in runs]
        return Found(folder.resolve().name, runs[0].config, methods, runs)
    runs, notes, written = [], [], _written(folder)
    for file in sorted(folder.glob(f"*/seed*/{CONFIG}")):
        try:
            run = Run.load(file.parent)
            if isinstance(run.config, ExperimentConfig):
                runs.append(run)
        except ConfigError as error:
            notes.append(f"A run is left out: {error}")
    remedy = "name a folder that fedpart compare or run has written"
    require(runs, f"{folder} holds no federated run and no comparison; {remedy}.", ConfigError)
    runs = _once(runs, notes)
    # what one table may average: runs of the same settings, and within a method of the same options
    runs = _most(runs, _shared, notes)
    for method in dict.fromkeys(run.config.method for run in runs):
        mine = [run for run in runs if run.config.method == method]
        kept = _most(mine, _options, notes)
        runs = [run for run in runs if run in kept or run not in mine]
    rows = [row["method"] for row in written.get("rows", [])]
    mine = dict.fromkeys(run.config.method for run in runs)
    methods = [*(method for method in rows if method in mine), *(m for m in mine if m not in rows)]
    runs.sort(key=lambda run: (methods.index(run.config.method), run.config.seed))
    for failure in written.get("failures", []):
        notes.append(f"Failed: {failure['method']}, seed {failure['seed']}: {failure['error']}")
    config = runs[0].config.resolved()
    published = written.get("config", {}).get("published", config["published"])
    config = ExperimentConfig.from_dict(config | {"published": published})
    return Found(folder.resolve().name, config, methods, runs, notes)


def _once(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """Of runs with the same settings the one that has come furthest; a note on each of the others."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        same = [run.config.method, run.config.seed, _shared(run.config), _options(run.config)]
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(run)
    for group in groups.values():
        group.sort(
            key=lambda run: (-len(run.metrics), run.folder.parent.name != run.config.method, run.folder)
        )
        for run in group[1:]:
            notes.append(
                f"{run.folder} is left out: it is {run.config.method}, seed {run.config.seed}, again."
            )
    return [group[0] for group in groups.values()]


def _most(runs: Sequence[Run], settings: Callable[[Config], Settings], notes: list[str]) -> list[Run]:
    """The runs whose ``settings`` are the most frequent ones, or the first; a note on each of the others."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(settings(run.config), sort_keys=True), []).append(run)
    kept = max(groups.values(), key=len)
    for run in runs:
        if run not in kept:
            differing = in_short(changed(settings(run.config), settings(kept[0].config)))
            other = f"{run.folder} has other settings than {kept[0].folder}"
            notes.append(f"A run is left out: {other} ({differing}).")
    return kept


def _shared(config: Config) -> Settings:
    left_out = {"method", "seed", "method_options"}
    return {key: value for key, value in deciding(config).items() if key not in left_out}


def _options(config: Config) -> Settings:
    return {"method_options": config.method_options.get(config.method, {})}


def _written(folder: Path) -> dict[str, Any]:
    """What the comparison has left in its folder when it ended; empty if it has not, or is about to."""
    try:
        saved = parsed((folder / "comparison.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return saved if isinstance(saved, dict) else {}


def points_of(config: Config) -> str:
    """How many examples a run trains on."""
    number = config.training_points
    return counted(number, "training point") if number else "all training points"


def about(config: ExperimentConfig) -> str:
    """The experiment in a line: data, clients, length."""
    turned = f" turned by up to {config.max_angle:g} degrees" if config.rotated else ""
    recipe, by = config.split.recipe, config.split.by
    split = "each with its own" if recipe == "natural" else f"{recipe} split by {by}"
    split += f", Dirichlet {config.split.alpha:g}" if recipe not in ("natural", "iid") else ""
    return (
        f"Data {config.data}{turned}, {points_of(config)}; {counted(config.clients, 'client')} ({split}) in "
        f"cohorts of {config.cohort}; model {config.model}, S = {config.samples}; "
        f"{counted(config.rounds, 'round')}."
    )


def runs_table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Every run: how far it is, where and how it was computed, and the hash of what it computed."""
    rows, private = [], any("epsilon" in run.summary for run in runs)
    for run in runs:
        config = run.config
        state = f"round {len(run.metrics):,} of {config.rounds:,}"
        state = counted(config.rounds, "round") if run.finished else state
        workers = run.summary.get("workers", config.processes)
        engine = [run.summary.get("engine", config.engine)]
        engine += [f"{workers} workers"] if workers and workers > 1 else []
        engine += [config.execution] if config.execution not in ("auto", "loop") else []
        precision = f"{config.precision}{', channels last' if config.channels_last else ''}"
        spent = [privacy_text(run.summary)] * private
        rows.append([run.name, state, ", ".join(engine), precision, *spent, config.hash()])
    return ["run", "state", "engine", "precision", *["privacy"] * private, "configuration"], rows


def versions(runs: Sequence[Run]) -> list[str]:
    """A sentence for each set of versions that has computed finished runs."""
    texts_of: dict[str, list[str]] = {}
    for run in runs:
        if summary := run.summary:
            texts = [f"{key} {value}" for key, value in summary.get("versions", {}).items() if value]
            if commit := summary.get("git_commit"):
                number, plus, changes = commit.partition("+")
                texts.append(f"commit {number[:12]}{plus}{changes}")
            texts_of.setdefault(", ".join(texts) or "versions not recorded", []).append(run.name)
    every = len(texts_of) == 1
    return [f"{'All finished runs' if every else '; '.join(own)}: {text}." for text, own in texts_of.items()]
