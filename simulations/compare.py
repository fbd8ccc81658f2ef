"""Compare: several methods on the same data, clients and cohorts, one run folder per method and seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedpart import ClientError
from simulations.cells import Cell, Runner, complete, say
from simulations.comparison import Comparison, Failure
from simulations.config import ConfigError, ExperimentConfig
from simulations.curves import Run, metric
from simulations.fast_path import settled
from simulations.plots import plot_comparison
from simulations.progress import Progress
from simulations.runner import run_experiment
from simulations.scores import MethodScores


class ComparisonIncomplete(ClientError):
    """Some cells have no result; all others are in ``comparison``, and on the disk."""

    def __init__(self, comparison: Comparison) -> None:
        cells = len(comparison.failures) + sum(len(row.seeds) for row in comparison.rows)
        head = f"{len(comparison.failures)} of {cells} runs failed; the same command runs them again."
        super().__init__("\n".join([head, *comparison.failed()]))
        self.comparison = comparison


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
        progress: shows the runs on a terminal; None shows nothing of them.
        console: where the table goes; standard output if not given.

    Raises:
        ComparisonIncomplete: some cells failed; raised at the end, when everything else is written.
        ConfigError: see :func:`plan` and :func:`~simulations.cells.complete`.
        Interrupted, OSError: the comparison stopped; finished cells stay, the same command continues it.
    """
    out, console = Path(out), console or Console()
    config = settled(config, out, progress)
    cells = plan(config, methods, seeds, out)
    failures = [
        Failure(failed.cell.config.method, failed.cell.config.seed, failed.error, failed.traceback)
        for failed in complete(cells, run=run, progress=progress, console=console)
    ]
    comparison = collect(config, methods, cells, failures)
    out.mkdir(parents=True, exist_ok=True)
    comparison.write(out, plot_comparison(_runs(methods, cells), out))
    console.print(comparison.table())
    for note in comparison.notes:
        say(console, note)
    say(console, f"Table, numbers and learning curves: {out / 'comparison.md'}")
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


def _runs(methods: Sequence[str], cells: Sequence[Cell]) -> dict[str, list[Run]]:
    """Finished runs by method, seeds ascending."""
    runs: dict[str, list[Run]] = {method: [] for method in methods}
    for cell in cells:
        if cell.finished():
            runs[cell.config.method].append(Run.load(cell.folder))
    return runs


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
