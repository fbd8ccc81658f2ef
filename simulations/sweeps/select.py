"""Select: one training run for each value of a key, compared by the evidence."""

import re
from pathlib import Path

from simulations.building.experiment import ready
from simulations.config.load import TrainingConfig, with_values
from simulations.errors import ConfigError, one_sentence
from simulations.folders.cell import Cell, folder_name, refuse_other_sweep
from simulations.folders.contents import SUMMARY
from simulations.results.pictures.sweep_figures import plot_selection
from simulations.results.selection import Column, Selection
from simulations.running.precision import choose_precision
from simulations.sweeps.cell_runner import CellRunner, summaries

LAPLACE_EVERY = 150  # iterations between a plain network's reports, each of which costs seconds
# Keys whose values have no evidences that can be compared, and why.
_EXAMPLES = (
    *("chunks", "seed", "data", "data_dir", "data_options", "data_seed", "training_points"),
    *("rotated", "max_angle", "normalise"),
)
_INCOMPARABLE = {
    **dict.fromkeys(_EXAMPLES, "each is of other examples"),
    **dict.fromkeys(("evidence", "method"), "each estimates it in another way"),
}


def plan(config: TrainingConfig, out: Path) -> list[Cell]:
    """The cells of a selection, repetition by repetition; all values of one see the same data."""
    if (section := config.select) is None:
        remedy = "add for instance select: {key: hyperparameters.mask.kept, values: [5, 10, 15]}"
        raise ConfigError(f"The configuration does not say what to select; {remedy}.")
    if (reason := _INCOMPARABLE.get(section.key.partition(".")[0])) is not None:
        fault = f"Values of {section.key} cannot be compared by their evidence, for {reason}"
        raise ConfigError(f"{fault}; select another key.")
    folders = [folder_name(re.sub(r"(?<!\w)-", "minus-", str(value))) or "null" for value in section.values]
    key, cells = section.key, list[Cell]()
    for i in range(section.seeds):
        seeds = {"select": None, "seed": config.seed + i, "data_seed": config.data_seed + i}
        for value, folder in zip(section.values, folders, strict=True):
            chosen = with_values(config, seeds | {key: value}, f"select.key {key} with the value {value!r}")
            name = f"{key.rpartition('.')[2]} {value}, seed {chosen.seed}"
            cell = Cell(name, chosen, out / folder / f"seed{chosen.seed}")
            if any(cell.folder == each.folder or cell.config == each.config for each in cells):  # 15, 15.0
                raise ConfigError(f"select.values has {value!r} twice; name every value once.")
            cells.append(cell)
    return cells


def run_selection(
    config: TrainingConfig, out: str | Path, runner: CellRunner | None = None, laplace: bool = False
) -> Selection:
    """Train with every value, then print and write which one the evidence prefers; with ``laplace`` beside
    plain networks, judged (with keep_best: stopped early) by diagonal Laplace."""
    out, runner = Path(out), runner or CellRunner()
    refuse_other_sweep(out, SUMMARY)
    config = choose_precision(config, out)
    cells = plan(config, out)
    assert config.select is not None
    twins = [_laplace_twin(cell, out) for cell in cells] if laplace else []
    todo: dict[Path, Cell] = {}  # the first of each value
    for cell in [*cells, *twins]:
        if not cell.finished():
            todo.setdefault(cell.folder.parent, cell)
    for cell in todo.values():
        _check(cell, "--laplace: " if cell in twins else f"{cell.name}: ")
    failed = runner.complete([*cells, *twins])
    columns = [Column.of(config.method, config.judged_by, config, summaries(cells))]
    if twins:
        columns.append(Column.of("laplace", "laplace", config, summaries(twins)))
    failures = [(cell.name, error) for cell, error, _ in failed]
    selection = Selection(config.select.key, columns, failures, config)
    out.mkdir(parents=True, exist_ok=True)
    selection.write(out)
    files = [out / "summary.json", *plot_selection(selection, out)]
    remarks = [f"Files: {', '.join(map(str, files))}"]
    runner.conclude(selection, remarks, failed, len(cells) + len(twins))
    return selection


def _laplace_twin(cell: Cell, out: Path) -> Cell:
    """A cell's plain network (App. I.4): same model, data, seeds and optimiser, one partition on all data."""
    values = {
        "method": "none",
        "method_options": {"none": {"augment": True}},
        "evidence": "laplace",
        "evaluate_every": LAPLACE_EVERY,
    }
    folder = out / "laplace" / cell.folder.relative_to(out)
    return Cell(f"{cell.name}, plain", with_values(cell.config, values, "--laplace"), folder)


def _check(cell: Cell, source: str) -> None:
    """Refuse, before anything is run, what has no evidence; the message begins with ``source``."""
    with one_sentence(lambda reason: ConfigError(f"{source}{reason}")):
        training = ready(cell.config)[1]
    if cell.config.judged_by == "lml" and not training.scores_chunks:
        raise ConfigError(
            f"{source}selection compares L_ML, which the method {cell.config.method!r} on "
            f"{len(training.shares)} chunks does not have; use method: partitioned with two chunks or more, "
            f"or evidence: laplace."
        )
