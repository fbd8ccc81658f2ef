"""Compare: several methods on the same data, clients and cohorts, one run folder per method and seed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpart.methods.base import Method, method_class
from fedpart.methods.plain import Plain
from simulations.building.data import load_data
from simulations.building.reading import seen_shape
from simulations.building.task import build_task
from simulations.config.load import ExperimentConfig, with_values
from simulations.errors import ConfigError, one_sentence
from simulations.folders.cell import Cell
from simulations.folders.run_directory import CONFIG, make_folder, read_summary
from simulations.results.comparison import Comparison, Failure, collect
from simulations.results.curves import Run
from simulations.results.overview import Overview
from simulations.results.pictures.run_figures import plot_comparison
from simulations.running.precision import choose_precision
from simulations.sweeps.cell_runner import CellRunner, gathered


def plan(config: ExperimentConfig, methods: Sequence[str], seeds: int, out: Path) -> list[Cell]:
    """The cells of a comparison, seed by seed; methods of a seed see the same data, clients and cohorts."""
    if seeds < 1:
        raise ConfigError(f"A comparison needs at least one seed, got --seeds {seeds}.")
    if not methods:
        raise ConfigError("A comparison needs at least one method, got none; name some with --methods.")
    if twice := [method for method in methods if list(methods).count(method) > 1]:
        raise ConfigError(f"--methods names {twice[0]!r} twice; name every method once.")
    cells = []
    for seed in range(config.seed, config.seed + seeds):
        for method in methods:
            names = [method, *method.split("+")]
            options = {name: own for name, own in config.method_options.items() if name in names}
            values = {"method": method, "method_options": options, "seed": seed}
            folder = out / method.replace(":", ".") / f"seed{seed}"
            own_config = with_values(config, values, f"--methods {method}")
            cells.append(Cell(f"{method}, seed {seed}", own_config, folder))
    return cells


def run_comparisons(
    configs: Mapping[str, ExperimentConfig],
    methods: Sequence[str],
    seeds: int,
    out: str | Path,
    runner: CellRunner | None = None,
) -> dict[str, Comparison]:
    """Run every cell that is not finished, seed by seed, then print and write the comparisons, by name."""
    out, runner = Path(out), runner or CellRunner()
    _check_layout(out, several="" not in configs)
    configs = {name: choose_precision(config, out / name) for name, config in configs.items()}
    plans = {
        name: _that_fit(plan(config, methods, seeds, out / name), name, runner)
        for name, config in configs.items()
    }
    cells = [
        replace(cell, name=f"{name}: {cell.name}") if name else cell
        for i in range(seeds)
        for name, own in plans.items()
        for cell in own
        if cell.config.seed == configs[name].seed + i
    ]
    finished_runs(cells)  # one that cannot be read is found before the others are run
    failed = runner.complete(cells)
    comparisons: dict[str, Comparison] = {}
    remarks, sentences = [], []
    for name, config in configs.items():
        folder, own = out / name, plans[name]
        failures = [
            Failure(cell.config.method, cell.config.seed, error, trace)
            for cell, error, trace in failed
            if cell.folder.parents[1] == folder
        ]
        runs = finished_runs(own)
        comparison = comparisons[name] = collect(config, [cell.config.seed for cell in own], runs, failures)
        make_folder(folder, config)
        comparison.write(folder, plot_comparison(runs, folder))
        front = f"{name}: " if name else ""
        remarks += [front + text for text in comparison.remarks]
        sentences += [front + text for text in comparison.failed()]
    if "" in comparisons:
        shown, what = comparisons[""], "Table, numbers and learning curves"
    else:
        shown, what = Overview(comparisons), "Table and numbers"
        shown.write(out)
    remarks.append(f"{what}: {out / 'comparison.md'}. A page with everything: fedpart report {out}")
    runner.conclude(shown, remarks, failed, len(cells), sentences)
    return comparisons


def _that_fit(cells: Sequence[Cell], name: str, runner: CellRunner) -> list[Cell]:
    """Without those whose method refuses the task, as Augerino does where nothing can be augmented."""
    firsts = {cell.config.method: cell for cell in reversed(cells)}
    left = dict(firsts)
    shape: tuple[int, Any] | None = None  # of the data, which all cells have in common
    for method, cell in firsts.items():
        prepare = getattr(method_class(method), "prepare", Method.prepare)
        if prepare in (Method.prepare, Plain.prepare) or len(left) == 1 or cell.finished():
            continue  # it takes every task, or has taken this one
        with one_sentence():
            shape = shape or _shape(cells)
            task = build_task(cell.config, *shape)
        try:
            cell.config.build_method().prepare(task)
        except ValueError as error:
            del left[method]
            runner.say(f"{f'{name}: ' if name else ''}{method} is left out, for it does not fit: {error}")
    return [cell for cell in cells if cell.config.method in left]


def _shape(cells: Sequence[Cell]) -> tuple[int, Any]:
    """See :func:`.seen_shape`; of a finished one of the cells, or of the data."""
    for cell in cells:
        if (summary := read_summary(cell.folder, cell.config)) is not None and "inputs" in summary:
            return seen_shape(cell.config, summary)
    data = load_data(cells[0].config)
    return data.num_classes, data.train.input_shape


def _check_layout(out: Path, several: bool) -> None:
    """Refuse one comparison over several or the reverse: runs would not be found, and be run again."""
    if several and any(out.glob(f"*/seed*/{CONFIG}")):
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


def finished_runs(cells: Sequence[Cell]) -> dict[str, list[Run]]:
    """Finished runs by method, in the order of the cells."""
    return gathered(
        cells,
        lambda cell: cell.config.method,
        lambda cell: Run.load(cell.folder) if cell.finished() else None,
    )
