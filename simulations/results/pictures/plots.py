"""The pictures of a run and of a comparison, written as PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from simulations.building.data import load_data
from simulations.folders.run_directory import BESIDE, CONFIG, STATE
from simulations.results.curves import Run, metric, with_curve
from simulations.results.pictures.comparison_figures import metric_figure, psi_figure, psi_groups
from simulations.results.pictures.figures import drawn, save_png
from simulations.results.pictures.run_figures import anytime_figure, has_costs, run_figures
from simulations.results.pictures.transform_figures import examples, run_blocks, transforms_figure


@drawn
def plot_run(folder: str | Path, *, download: bool = True) -> list[Path]:
    """Draw one run's pictures into its folder.

    ``learning_curve.png``; ``psi.png`` if it learned hyperparameters, those of a mask over inputs apart in
    ``mask.png``; of a finished run on images, what its transforms do to them, ``transforms.png``; and of a
    finished ensemble the accuracy of its subsets, ``anytime.png``.

    The run need not be finished; there are no files without a line of metrics. Unless ``download``, data that
    are not here are not fetched.
    """
    run = Run.load(folder)
    if not run.metrics:
        return []
    other = run.folder / BESIDE
    beside = Run.load(other) if (other / CONFIG).is_file() else None
    figures = run_figures(run, beside)
    if has_costs(run.summary):
        figures["anytime"] = anytime_figure(run.summary)
    files = save_png(figures, run.folder)
    if (run.folder / STATE).is_file():
        splits = load_data(run.config, download=download)
        if blocks := run_blocks(run.folder, splits):
            files += save_png({"transforms": transforms_figure(blocks, examples(splits)[1])}, run.folder)
    return files


@drawn
def plot_comparison(runs: Mapping[str, Sequence[Run]], out: str | Path) -> list[Path]:
    """Draw a comparison's curves against rounds and bytes and, if any was learned, psi over rounds.

    The files are ``accuracy_rounds.png``, ``accuracy_bytes.png`` (``nll_...`` where no run has an accuracy)
    and ``psi.png``; a method without runs is left out.
    """
    figures = {}
    if any(with_curve(runs, metric(runs)).values()):
        for against in ("rounds", "bytes"):
            figures[f"{metric(runs).removeprefix('val_')}_{against}"] = metric_figure(runs, against)
    found = psi_groups(runs)
    shown = [group for group in found if group.kind in ("angle", "rate")] or found[:4]
    if shown:
        figures["psi"] = psi_figure(runs, shown)
    return save_png(figures, Path(out))
