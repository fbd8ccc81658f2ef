"""Compare: several methods on the same data, clients and cohorts, one run folder per method and seed."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from fedpart import ClientError
from simulations.comparison import Comparison, Failure
from simulations.config import RIM, ConfigError, ExperimentConfig
from simulations.curves import Run, metric
from simulations.experiment import RunError
from simulations.plots import plot_comparison
from simulations.progress import Progress
from simulations.run_directory import holds_run, read_summary, saved_config
from simulations.runner import Interrupted, run_experiment
from simulations.scores import MethodScores

Runner = Callable[..., dict[str, Any]]


class ComparisonIncomplete(ClientError):
    """Some cells have no result; all others are in ``comparison``, and on the disk."""

    def __init__(self, comparison: Comparison) -> None:
        cells = len(comparison.failures) + sum(len(row.seeds) for row in comparison.rows)
        head = f"{len(comparison.failures)} of {cells} runs failed; the same command runs them again."
        super().__init__("\n".join([head, *comparison.failed()]))
        self.comparison = comparison


@dataclass(frozen=True)
class Cell:
    """One run of a comparison: the shared configuration with its own method and seed, and its folder."""

    config: ExperimentConfig
    folder: Path

    def state(self) -> Literal["new", "started", "finished"]:
        """What its folder holds.

        Raises:
            ConfigError: a run with another configuration; the message names the keys that differ.
        """
        if not holds_run(self.folder):
            return "new"
        differing = _differences(saved_config(self.folder).resolved(), self.config.resolved())
        if differing:
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise ConfigError(
                f"{self.folder} holds a run with other settings ({', '.join(differing[:3])}{more}); "
                f"choose another folder with --out, or delete this one."
            )
        return "finished" if self.finished() else "started"

    def finished(self) -> bool:
        """Whether its folder holds the outcome of all its rounds."""
        return read_summary(self.folder, self.config.rounds) is not None


def plan(config: ExperimentConfig, methods: Sequence[str], seeds: int, out: Path) -> list[Cell]:
    """The cells of a comparison, all methods of a seed before the next seed.

    A cell's seed is ``config.seed + i``. Cohorts depend on it and on nothing of the method, data on
    ``data_seed`` alone: the methods of a seed see the same data, clients and cohorts.

    Raises:
        ConfigError: no method or seed, a method twice, an unknown one, or one that does not fit.
    """
    if seeds < 1:
        raise ConfigError(f"A comparison needs at least one seed, got --seeds {seeds}.")
    if not methods:
        raise ConfigError("A comparison needs at least one method, got none; name some with --methods.")
    twice = [method for method in methods if list(methods).count(method) > 1]
    if twice:
        raise ConfigError(f"--methods names {twice[0]!r} twice; name every method once.")
    base = config.resolved()
    cells = []
    for seed in range(config.seed, config.seed + seeds):
        for method in methods:
            own = {name: options for name, options in base["method_options"].items() if name == method}
            changed = base | {"method": method, "method_options": own, "seed": seed}
            folder = out / method.replace(":", ".") / f"seed{seed}"
            cells.append(Cell(ExperimentConfig.from_dict(changed, f"--methods {method}"), folder))
    return cells


def run_comparison(
    config: ExperimentConfig,
    methods: Sequence[str],
    seeds: int,
    out: str | Path,
    *,
    run: Runner = run_experiment,
    progress: Progress | None = None,
    console: Console | None = None,
) -> Comparison:
    """Run every cell that is not finished, then print and write the comparison.

    ``out`` gets ``<method>/seed<k>/`` (run folders), ``comparison.md``, ``.csv``, ``.json``, and pictures
    (:func:`~simulations.plots.plot_comparison`). Finished cells are not run again, started ones continued.

    Args:
        config: what the methods have in common; its own ``method`` plays no part.
        methods: names, or ``package.module:Class``.
        seeds: number of seeds, from ``config.seed`` on.
        out: the comparison's folder.
        run: what runs a cell; called like :func:`~simulations.runner.run_experiment`.
        progress: shows the runs; None shows nothing of them.
        console: where the table goes; standard output if not given.

    Raises:
        ComparisonIncomplete: some cells failed; raised at the end, when everything else is written.
        ConfigError: see :func:`plan` and :meth:`Cell.state`; or the first run could not be set up.
        Interrupted, OSError: the comparison stopped; finished cells stay, the same command continues it.
    """
    out, console = Path(out), console or Console()
    cells = plan(config, methods, seeds, out)
    todo = [(cell, state) for cell in cells if (state := cell.state()) != "finished"]
    if len(todo) < len(cells):
        done = f"{len(cells) - len(todo)} of {len(cells)} runs"
        _say(console, f"{done} were finished before and are not run again.")
    failures: list[Failure] = []
    for number, (cell, state) in enumerate(todo, start=1):
        _say(console, f"Run {number} of {len(todo)}: {cell.config.method}, seed {cell.config.seed}")
        try:
            run(cell.config, cell.folder, resume=state == "started", progress=progress)
        except (Interrupted, OSError):
            raise  # a person, the disk, another process: the other cells would fare no better
        except Exception as error:  # one bad cell must not lose the others
            if isinstance(error, ConfigError) and number == 1 and len(todo) == len(cells):
                raise  # nothing is lost yet, and most likely none of them can be set up
            failures.append(_failure(cell, error))
            _say(console, f"Failed: {failures[-1].error}")
    comparison = collect(config, methods, cells, failures)
    out.mkdir(parents=True, exist_ok=True)
    comparison.write(out, plot_comparison(_runs(methods, cells), out))
    console.print(comparison.table())
    for note in comparison.notes:
        _say(console, note)
    _say(console, f"Table, numbers and learning curves: {out / 'comparison.md'}")
    if failures:
        raise ComparisonIncomplete(comparison)
    return comparison


def collect(
    config: ExperimentConfig, methods: Sequence[str], cells: Sequence[Cell], failures: Sequence[Failure] = ()
) -> Comparison:
    """Read the finished cells' folders and summarise them."""
    runs = _runs(methods, cells)
    measure = metric(runs)
    return Comparison(
        rows=[MethodScores.of(method, own, measure, runs.get("fedavg", ())) for method, own in runs.items()],
        failures=list(failures),
        notes=_unequal_cohorts(runs),
        metric=measure,
        rounds=config.rounds,
        seeds=sorted({cell.config.seed for cell in cells}),
        config={key: value for key, value in config.resolved().items() if key not in ("method", "seed")},
    )


def _failure(cell: Cell, error: Exception) -> Failure:
    """The error as a sentence; those that are not made for people keep their type."""
    expected = isinstance(error, (ClientError, RunError, ValueError))
    text = str(error) if expected else f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    return Failure(cell.config.method, cell.config.seed, text, trace)


def _runs(methods: Sequence[str], cells: Sequence[Cell]) -> dict[str, list[Run]]:
    """Finished runs by method, seeds ascending."""
    runs: dict[str, list[Run]] = {method: [] for method in methods}
    for cell in cells:
        if cell.finished():
            runs[cell.config.method].append(Run.load(cell.folder))
    return runs


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _unequal_cohorts(runs: dict[str, list[Run]]) -> list[str]:
    """A sentence per seed whose methods did not meet the same clients, as where nodes were missing."""
    cohorts: dict[int, dict[str, list[list[int]]]] = {}
    for method, own in runs.items():
        for run in own:
            cohorts.setdefault(run.summary["seed"], {})[method] = [line["cohort"] for line in run.metrics]
    notes = []
    for seed, by_method in cohorts.items():
        for round, drawn in enumerate(zip(*by_method.values(), strict=False), start=1):
            if any(cohort != drawn[0] for cohort in drawn):
                notes.append(f"Seed {seed}: the methods' cohorts differ, first in round {round}.")
                break
    return notes


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """What differs, as ``rounds: 6 there, 8 here``; not the keys that cannot change a number of the table."""
    found = []
    for key, value in here.items():
        before = there.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            found += [f"{key}.{rest}" for rest in _differences(before, {**dict.fromkeys(before), **value})]
        elif before != value and (key == "engine" or key not in RIM):
            found.append(f"{key}: {before} there, {value} here")
    return found
