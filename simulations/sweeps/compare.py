"""Compare: several methods on the same data, clients and cohorts, one run folder per method and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fedpart import ClientError
from simulations.config.load import ConfigError, ExperimentConfig
from simulations.config.published import Published
from simulations.folders.run_directory import CONFIG
from simulations.pictures.plots import plot_comparison
from simulations.results.comparison import Comparison, Failure
from simulations.results.curves import Run, metric
from simulations.results.overview import Overview
from simulations.results.scores import MethodScores, least_upload
from simulations.running.fast_path import settled
from simulations.running.runner import run_experiment
from simulations.sweeps.cells import Cell, Runner, complete, say
from simulations.terminal.progress import Progress


class ComparisonIncomplete(ClientError):
    """Some cells have no result; all others are in ``comparisons``, by name, and on the disk."""

    def __init__(self, comparisons: Mapping[str, Comparison]) -> None:
        found = comparisons.values()
        failed = sum(len(comparison.failures) for comparison in found)
        cells = failed + sum(len(row.seeds) for comparison in found for row in comparison.rows)
        lines = [f"{failed} of {cells} runs failed; the same command runs them again."]
        for name, comparison in comparisons.items():
            lines += [f"{name}: {text}" if name else text for text in comparison.failed()]
        super().__init__("\n".join(lines))
        self.comparisons = comparisons


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
            own_config = ExperimentConfig.from_dict(changed, f"--methods {method}")
            cells.append(Cell(f"{method}, seed {seed}", own_config, folder))
    return cells


def run_comparison(
    config: ExperimentConfig,
    methods: Sequence[str],
    seeds: int,
    out: str | Path,
    *,
    jobs: int = 1,
    run: Runner = run_experiment,
    progress: Progress | None = None,
    console: Console | None = None,
) -> Comparison:
    """Run every cell that is not finished, then print and write the comparison.

    ``out`` gets ``<method>/seed<k>/`` (run folders), ``comparison.md``, ``.csv``, ``.json``, and pictures
    (:func:`.plot_comparison`). Finished cells are not run again, started ones continued.

    Args:
        config: what the methods have in common; its own ``method`` plays no part.
        methods: names, or ``package.module:Class``.
        seeds: number of seeds, from ``config.seed`` on.
        out: the comparison's folder.
        jobs: processes that run cells; with 1 this one does.
        run: what runs a cell in this process; called like :func:`.run_experiment`.
        progress: shows the runs of this process on a terminal; None shows nothing of them.
        console: where the table goes; standard output if not given.

    Raises:
        ComparisonIncomplete: some cells failed; raised at the end, when everything else is written.
        ConfigError: see :func:`plan` and :func:`.complete`; or a finished run is damaged,
            or runs of other configurations are in the way.
        Interrupted, OSError: the comparison stopped; finished cells stay, the same command continues it.
    """
    found = run_comparisons(
        {"": config}, methods, seeds, out, jobs=jobs, run=run, progress=progress, console=console
    )
    return found[""]


def run_comparisons(
    configs: Mapping[str, ExperimentConfig],
    methods: Sequence[str],
    seeds: int,
    out: str | Path,
    *,
    jobs: int = 1,
    run: Runner = run_experiment,
    progress: Progress | None = None,
    console: Console | None = None,
) -> dict[str, Comparison]:
    """As :func:`run_comparison`, for several configurations, each in a folder of its name in ``out``.

    All configurations of a seed come before the next seed. ``out`` itself gets the table of all
    (:class:`.Overview`).

    Returns:
        The comparisons by name.
    """
    out, console = Path(out), console or Console()
    _check_layout(out, several="" not in configs)
    configs = {name: settled(config, out / name, progress) for name, config in configs.items()}
    plans = {name: plan(config, methods, seeds, out / name) for name, config in configs.items()}
    cells = [
        replace(cell, name=f"{name}: {cell.name}") if name else cell
        for i in range(seeds)
        for name, own in plans.items()
        for cell in own[i * len(methods) : (i + 1) * len(methods)]
    ]
    finished_runs(methods, cells)  # one that cannot be read is found before the others are run
    failed = complete(cells, run=run, jobs=jobs, progress=progress, console=console)
    comparisons = {}
    for name, config in configs.items():
        folder, own = out / name, plans[name]
        folders = {cell.folder for cell in own}
        failures = [
            Failure(entry.cell.config.method, entry.cell.config.seed, entry.error, entry.traceback)
            for entry in failed
            if entry.cell.folder in folders
        ]
        runs = finished_runs(methods, own)
        comparison = comparisons[name] = collect(config, own, runs, failures)
        folder.mkdir(parents=True, exist_ok=True)
        comparison.write(folder, plot_comparison(runs, folder))
    if "" in comparisons:
        shown, what = comparisons[""], "Table, numbers and learning curves"
    else:
        shown, what = Overview(comparisons), "Table and numbers"
        shown.write(out)
    console.print(shown.table())
    for name, comparison in comparisons.items():
        for note in comparison.remarks:
            say(console, f"{name}: {note}" if name else note)
    say(console, f"{what}: {out / 'comparison.md'}. A page with everything: fedpart report {out}")
    if failed:
        raise ComparisonIncomplete(comparisons)
    return comparisons


def _check_layout(out: Path, several: bool) -> None:
    """Refuse to lay several comparisons over one that has the folder to itself, or one over several.

    Its runs would not be found there, and be run again.
    """
    if several and next(out.glob(f"*/seed*/{CONFIG}"), None):
        raise ConfigError(
            f"{out} is the folder of a comparison with one configuration; move what it holds into a folder "
            f"in it with that configuration's name, or choose another folder with --out."
        )
    inner = next(out.glob(f"*/*/seed*/{CONFIG}"), None)
    if not several and inner:
        raise ConfigError(
            f"{out} is the folder of a comparison with several configurations; name them all, or continue "
            f"that of one in its own folder, for instance with --out {inner.parents[2]}."
        )


def collect(
    config: ExperimentConfig,
    cells: Sequence[Cell],
    runs: Mapping[str, Sequence[Run]],
    failures: Sequence[Failure] = (),
) -> Comparison:
    """Summarise the finished runs of the cells, see :func:`finished_runs`."""
    measure, fedavg, least = metric(runs), runs.get("fedavg", ()), least_upload(runs)
    return Comparison(
        rows=[MethodScores.of(method, own, measure, fedavg, least) for method, own in runs.items()],
        failures=list(failures),
        notes=_unequal_cohorts(runs),
        metric=measure,
        rounds=config.rounds,
        seeds=sorted({cell.config.seed for cell in cells}),
        config={key: value for key, value in config.resolved().items() if key not in ("method", "seed")},
        published=None if config.published is None else Published.of(config.published),
    )


def finished_runs(methods: Sequence[str], cells: Sequence[Cell]) -> dict[str, list[Run]]:
    """Finished runs by method, seeds ascending."""
    runs: dict[str, list[Run]] = {method: [] for method in methods}
    for cell in cells:
        if cell.finished():
            runs[cell.config.method].append(Run.load(cell.folder))
    return runs


def _unequal_cohorts(runs: Mapping[str, Sequence[Run]]) -> list[str]:
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
