"""Plots: learning curves and hyperparameters over time, as PNG, for one run and for a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simulations.folders.run_directory import STATE
from simulations.pictures.figures import (
    COLOURS,
    DASHES,
    EVIDENCE,
    MANY,
    canvas,
    draw_band,
    draw_group,
    draw_many,
    dress,
    legend_above,
    marks,
    zoom,
)
from simulations.pictures.mask_figures import mask_figure
from simulations.pictures.transform_figures import run_transforms_figure
from simulations.results.curves import LAST, Band, Run, byte_unit, metric, metric_band, psi_bands
from simulations.results.psi_parts import PsiParts, groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = {  # factor, name and unit of a metric in pictures
    "val_accuracy": (100, "validation accuracy", "%"),
    "val_nll": (1, "validation loss", "nats per example"),
}
AVERAGED = f"moving average of up to {LAST} evaluations"
TRAFFIC_NAMES = {"upload": "upload", "download": "download", "bytes": "upload + download"}


def plot_run(folder: str | Path, *, download: bool = True) -> list[Path]:
    """Draw one run's pictures into its folder.

    ``learning_curve.png``; ``psi.png`` if it learned hyperparameters, those of a mask over inputs apart in
    ``mask.png``; and of a finished run on images, what its transforms do to them, ``transforms.png``.

    Args:
        folder: the run's folder, finished or not.
        download: whether the run's data may be fetched, where they are not here.

    Returns:
        The files written, none if there is no line of metrics.

    Raises:
        FileNotFoundError: the folder holds no run.
        ValueError, TypeError, OSError, ImportError, RuntimeError: the data for ``transforms.png`` cannot be
            read; the other pictures are there.
    """
    run = Run.load(folder)
    if not run.metrics:
        return []
    figures = {"learning_curve": run_figure(run)}
    masks = PsiParts.of(run.learned()).keeps
    if len(masks) < len(run.learned()):
        figures["psi"] = run_psi_figure(run)
    if masks:
        figures["mask"] = mask_figure(run)
    files = _save(figures, run.folder)
    if (run.folder / STATE).is_file():
        transforms = run_transforms_figure(run.folder, download=download)
        if transforms is not None:
            files += _save({"transforms": transforms}, run.folder)
    return files


def plot_comparison(runs: Mapping[str, Sequence[Run]], out: str | Path) -> list[Path]:
    """Draw a comparison's curves against rounds and bytes and, if any was learned, psi over rounds.

    Args:
        runs: by method, one run per seed; a method without runs is left out.
        out: folder for ``accuracy_rounds.png``, ``accuracy_bytes.png`` (``nll_...`` where no run has an
            accuracy) and ``psi.png``.

    Returns:
        The files written.
    """
    key = metric(runs)
    figures = {}
    if any(len(run.curve(key)[0]) for own in runs.values() for run in own):
        for against in ("rounds", "bytes"):
            figures[f"{key.removeprefix('val_')}_{against}"] = comparison_figure(runs, against)
    psi = comparison_psi_figure(runs)
    if psi is not None:
        figures["psi"] = psi
    return _save(figures, Path(out))


def run_figure(run: Run) -> Figure:
    """One run against its clock: validation accuracy and evidence, if it has them, and losses."""
    about = f": {run.summary['method']}, seed {run.summary['seed']}" if run.summary else ""
    accuracy, lml = run.curve("val_accuracy"), run.curve("lml")
    training, validation = run.curve("train_loss"), run.curve("val_nll")
    figure, axes = canvas(f"Learning curve{about}", panels=1 + sum(len(x) > 0 for x, _ in (accuracy, lml)))
    limits = _limits(run)
    if len(accuracy[0]):
        x, values = accuracy
        dress(axes[0], "validation accuracy [%]", limits=limits)
        axes[0].plot(x, 100 * values, color=COLOURS[0], lw=2, **marks(0, len(x)))
    if len(lml[0]):
        dress(axes[-2], f"{EVIDENCE[run.evidence]} [nats]", limits=limits)
        axes[-2].plot(*lml, color=COLOURS[2], lw=2, **marks(2, len(lml[0])))
        best = run.summary.get("lml_iteration", lml[0][-1])
        if best < lml[0][-1]:
            axes[-2].axvline(best, color="0.5", lw=1.2, ls="--", label="kept")
            legend_above(axes[-2], *axes[-2].get_legend_handles_labels())
    dress(axes[-1], "loss [nats per example]", run.clock, limits=limits)
    alone = marks(1, 1) if len(training[0]) == 1 else {}
    axes[-1].plot(*training, color=COLOURS[1], lw=1.2, label="training", **alone)
    if len(validation[0]):
        axes[-1].plot(*validation, color=COLOURS[0], lw=2, label="validation", **marks(0, len(validation[0])))
    for line in run.metrics:
        if "stage" in line:
            for ax in axes:
                ax.axvline(line[run.clock], color="0.5", lw=1.2, ls=":", label=line["stage"])
    legend_above(axes[-1], *axes[-1].get_legend_handles_labels())
    return figure


def run_psi_figure(run: Run) -> Figure:
    """Learned psi of one run over its clock, in physical units: a panel per kind, ranges as shaded bands."""
    masks = PsiParts.of(run.learned()).keeps
    bands, found = psi_bands([run]), groups(name for name in run.learned() if name not in masks)
    columns = 1 if len(found) < 4 else 2
    figure, axes = canvas("Learned hyperparameters", len(found), columns)
    for ax, group in zip(axes, found, strict=True):
        dress(ax, group.axis, run.clock, group.title, limits=_limits(run))
        if len(group.lines) > MANY:
            draw_many(ax, group, bands, COLOURS[0])
            continue
        for i, line in enumerate(group.lines):
            colour = COLOURS[i % len(COLOURS)]
            ends = [bands[name] for name in line.names]
            for end in ends:
                label = line.label if end is ends[0] else None
                ax.plot(end.x, end.mean, color=colour, ls=DASHES[i], lw=1.8, label=label)
            if len(ends) == 2:
                ax.fill_between(ends[0].x, ends[0].mean, ends[1].mean, color=colour, alpha=0.12, lw=0)
        if len(group.lines) > 1:
            legend_above(ax, *ax.get_legend_handles_labels(), columns=4 // columns)
    return figure


def _limits(run: Run) -> tuple[float, float]:
    counts = run.counts()
    return float(counts[0]), float(counts[-1])


def comparison_figure(runs: Mapping[str, Sequence[Run]], against: str) -> Figure:
    """:func:`draw_metric` as a figure of its own."""
    title = f"{METRICS[metric(runs)][1].capitalize()}, {AVERAGED}"
    figure, (ax,) = canvas(f"{title}\n{spread(runs)}")
    draw_metric(ax, runs, against)
    figure.legend(loc="outside lower center", ncols=3, fontsize=12, frameon=False)
    return figure


def draw_metric(ax: Axes, runs: Mapping[str, Sequence[Run]], against: str) -> None:
    """The validation metric of every method that has runs, AVERAGED: a colour each, a shaded error.

    Args:
        ax: where.
        runs: by method; at least one of them was evaluated.
        against: ``rounds``, or a kind of :data:`.TRAFFIC`.
    """
    key = metric(runs)
    factor, label, unit = METRICS[key]
    bands = {method: metric_band(own, key, against) for method, own in runs.items() if own}
    last = max(band.x[-1] for band in bands.values() if len(band.x))
    scale, bytes_unit = (1.0, "") if against == "rounds" else byte_unit(last)
    x, first = "round", 1
    if against != "rounds":
        x, first = f"{TRAFFIC_NAMES[against]}, all clients [{bytes_unit}]", 0
    dress(ax, f"{label} [{unit}]", x, limits=(first, last / scale))
    for i, method in enumerate(runs):
        if method in bands:
            own = bands[method]
            band = Band(own.x / scale, factor * own.mean, None if own.error is None else factor * own.error)
            draw_band(ax, band, COLOURS[i % len(COLOURS)], label=method, **marks(i, len(band.x)))
            bands[method] = band
    zoom(ax, bands.values())


def comparison_psi_figure(runs: Mapping[str, Sequence[Run]]) -> Figure | None:
    """Rotation range and dropout rates over rounds, else up to four other kinds; None if nothing learned."""
    methods = {method: psi_bands(own) for method, own in runs.items() if own}
    found = groups(dict.fromkeys(name for bands in methods.values() for name in bands))
    shown = [group for group in found if group.kind in ("angle", "rate")] or found[:4]
    if not shown:
        return None
    colours = {method: COLOURS[i % len(COLOURS)] for i, method in enumerate(runs)}
    figure, axes = canvas(f"Learned hyperparameters, {spread(runs)}", len(shown))
    last = max(len(run.metrics) for own in runs.values() for run in own)
    for ax, group in zip(axes, shown, strict=True):
        dress(ax, group.axis, "round" if ax is axes[-1] else "", group.title, limits=(1, last))
        draw_group(ax, group, methods, colours)
    learners = [method for method, bands in methods.items() if bands]
    handles = [axes[0].plot([], [], color=colours[method], lw=3)[0] for method in learners]
    figure.legend(handles, learners, loc="outside lower center", ncols=3, fontsize=12, frameon=False)
    return figure


def spread(runs: Mapping[str, Sequence[Run]]) -> str:
    """What a line and its shade are, over the seeds of the runs by method."""
    seeds = max((len(own) for own in runs.values()), default=0)
    return f"mean \N{PLUS-MINUS SIGN} standard error over {seeds} seeds" if seeds > 1 else "one seed"


def _save(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        figure.savefig(path, format="png")
    return paths
