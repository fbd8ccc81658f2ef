"""Compare: several methods on the same data, clients and cohorts, one run folder per method and seed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpart import Federation, Protocol
from fedpart.checks import require
from fedpart.engines import local_engine
from fedpart.updates.combining.base import is_personal
from simulations.building.data import load_data
from simulations.building.reading import seen_shape
from simulations.building.task import build_task
from simulations.config.load import ExperimentConfig, with_values
from simulations.errors import ConfigError, one_sentence
from simulations.folders.cell import Cell, refuse_other_sweep
from simulations.folders.contents import COMPARISON
from simulations.folders.run_directory import make_folder, read_summary
from simulations.results.comparison import Comparison, Failure, collect
from simulations.results.curves import Run
from simulations.results.pictures.run_figures import plot_comparison
from simulations.running.precision import choose_precision
from simulations.sweeps.cell_runner import CellRunner, gathered


def plan(config: ExperimentConfig, methods: Sequence[str], seeds: int, out: Path) -> list[Cell]:
    """The cells of a comparison, seed by seed; methods of a seed see the same data, clients and cohorts."""
    require(seeds >= 1, f"A comparison needs at least one seed, got --seeds {seeds}.", ConfigError)
    if not methods:
        raise ConfigError("A comparison needs at least one method, got none; name some with --methods.")
    if twice := [method for method in methods if list(methods).count(method) > 1]:
        raise ConfigError(f"--methods names {twice[0]!r} twice; name every method once.")
    cells = []
    for seed in range(config.seed, config.seed + seeds):
        for method in methods:
            names = [method, *method.split("+")]
            options = {name: changes for name, changes in config.method_options.items() if name in names}
            values = {"method": method, "method_options": options, "seed": seed}
            values |= {} if method.startswith("partitioned") else {"keep_best": None}  # there is no L_ML
            folder = out / method.replace(":", ".") / f"seed{seed}"
            own_config = with_values(config, values, f"--methods {method}")
            cells.append(Cell(f"{method}, seed {seed}", own_config, folder))
    return cells


def run_comparison(
    config: ExperimentConfig, methods: Sequence[str], seeds: int, out: str | Path,
    runner: CellRunner | None = None,
) -> Comparison:  # fmt: skip
    """Run every cell that is not finished, seed by seed, then print and write the comparison."""
    out, runner = Path(out), runner or CellRunner()
    refuse_other_sweep(out, COMPARISON)
    config = choose_precision(config, out)
    if config.evaluation == "central" and any(map(is_personal, methods)):
        runner.say("Clients have weights of their own, so all runs have evaluation: clients.")
        config = with_values(config, {"evaluation": "clients"}, "compare")
    cells = _that_fit(plan(config, methods, seeds, out), runner)
    finished_runs(cells)  # one that cannot be read is found before the others are run
    failed = runner.complete(cells)
    failures = [Failure(cell.config.method, cell.config.seed, error, trace) for cell, error, trace in failed]
    runs = finished_runs(cells)
    comparison = collect(config, [cell.config.seed for cell in cells], runs, failures)
    make_folder(out, config)
    comparison.write(out, plot_comparison(runs, out))
    where = f"Table, numbers and learning curves: {out / 'comparison.md'}"
    remarks = [*comparison.remarks, f"{where}. A page with everything: fedpart report {out}"]
    runner.conclude(comparison, remarks, failed, len(cells), comparison.failed())
    return comparison


def _that_fit(cells: Sequence[Cell], runner: CellRunner) -> list[Cell]:
    """Without those whose method refuses the task (as FedBN without norms), the settings or the engine."""
    firsts = {cell.config.method: cell for cell in reversed(cells)}
    left = dict(firsts)
    shape: tuple[int, Any] | None = None  # of the data, which all cells have in common
    for method, cell in firsts.items():
        if len(left) == 1 or cell.finished():
            continue
        with one_sentence():
            shape = shape or _shape(cells)
            task = build_task(cell.config, *shape)
        try:
            federation = Federation(Protocol(task, cell.config.settings()))
            if cell.config.engine == "local":
                local_engine(federation, [], execution=cell.config.execution)
        except ValueError as error:
            del left[method]
            runner.say(f"{method} is left out, for it does not fit: {error}")
    return [cell for cell in cells if cell.config.method in left]


def _shape(cells: Sequence[Cell]) -> tuple[int, Any]:
    """See :func:`.seen_shape`; of a finished one of the cells, or of the data."""
    for cell in cells:
        if (summary := read_summary(cell.folder, cell.config)) is not None and "inputs" in summary:
            return seen_shape(cell.config, summary)
    data = load_data(cells[0].config)
    return data.num_classes, data.train.input_shape


def finished_runs(cells: Sequence[Cell]) -> dict[str, list[Run]]:
    """Finished runs by method, in the order of the cells."""
    return gathered(
        cells,
        lambda cell: cell.config.method,
        lambda cell: Run.load(cell.folder) if cell.finished() else None,
    )
