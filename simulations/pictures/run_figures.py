"""Curves of one run over its rounds or iterations: how well it does, its psi, and a mask over inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulations.config.load import EVIDENCE_NAMES
from simulations.pictures.colours import COLOURS, GREY
from simulations.pictures.figures import (
    DASHES,
    MANY,
    canvas,
    draw_many,
    dress,
    dress_bar,
    legend_above,
    marks,
)
from simulations.results.curves import LAST, Run, moving_average, psi_bands
from simulations.results.psi_parts import PsiParts, groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SPAN = 10.0  # percentage points
BY_CLIENTS = {"clients": "client_{}", "worst tenth of clients": "client_{}_worst_decile"}


def run_figure(run: Run, beside: Run | None = None, *, page: bool = False) -> Figure:
    """One run against its clock: validation accuracy and evidence, if it has them, and losses.

    Where another method ran ``beside`` it, that one's accuracy is there too.

    Evidence is that of centralised training, or L_ML per example beside the validation log-likelihood.
    """
    accuracy, lml, clients = run.curve("val_accuracy"), run.curve("lml"), run.curve("client_accuracy")
    training, validation = run.curve("train_loss"), run.curve("val_nll")
    figure, axes = canvas(
        _title("Learning curve", run),
        panels=1 + (len(accuracy[0]) + len(clients[0]) > 0) + (len(lml[0]) > 0),
        page=page,
    )
    federated = run.clock == "round"
    limits = _limits(run)
    if len(accuracy[0]) and not len(clients[0]):
        x, values = accuracy
        dress(axes[0], "validation accuracy [%]", limits=limits)
        (own,) = axes[0].plot(x, 100 * values, color=COLOURS[0], lw=2, **marks(0, len(x)))
        if beside is not None:
            own.set_label(run.config.method)
            x, values = beside.curve("val_accuracy")
            label = f"{beside.config.method}, beside it"
            axes[0].plot(x, 100 * values, color=GREY, lw=2, label=label, **marks(1, len(x)))
            legend_above(axes[0])
        _show_a_span(axes[0])
    elif len(clients[0]):
        dress(axes[0], "accuracy [%]", limits=limits)
        for i, (label, key) in enumerate({"validation": "val_{}", **BY_CLIENTS}.items()):
            x, values = run.curve(key.format("accuracy"))
            if len(x):
                axes[0].plot(x, 100 * values, color=COLOURS[i], lw=2, label=label, **marks(i, len(x)))
        legend_above(axes[0])
    if len(lml[0]) and federated:
        dress(axes[-2], "log-likelihood [nats per example]", limits=limits)
        axes[-2].plot(*lml, color=COLOURS[2], lw=0.8, alpha=0.4, label="one round")
        average = (lml[0], moving_average(lml[1]))
        axes[-2].plot(
            *average, color=COLOURS[2], lw=2, label=f"{EVIDENCE_NAMES['lml']}, mean of {LAST} rounds"
        )
        if len(validation[0]):
            shown = marks(0, len(validation[0]))
            axes[-2].plot(validation[0], -validation[1], color=COLOURS[0], lw=2, label="validation", **shown)
        legend_above(axes[-2])
    elif len(lml[0]):
        dress(axes[-2], f"{EVIDENCE_NAMES[getattr(run.config, 'evidence', 'lml')]} [nats]", limits=limits)
        axes[-2].plot(*lml, color=COLOURS[2], lw=2, **marks(2, len(lml[0])))
        best = run.summary.get("lml_iteration", lml[0][-1])
        if best < lml[0][-1]:
            axes[-2].axvline(best, color=GREY, lw=1.2, ls="--", label="kept")
            legend_above(axes[-2])
    dress(axes[-1], "loss [nats per example]", run.clock, limits=limits)
    alone = marks(1, 1) if len(training[0]) == 1 else {}
    axes[-1].plot(*training, color=COLOURS[1], lw=1.2, label="training", **alone)
    if len(validation[0]):
        axes[-1].plot(*validation, color=COLOURS[0], lw=2, label="validation", **marks(0, len(validation[0])))
    for i, (label, key) in enumerate(BY_CLIENTS.items(), 2):
        x, values = run.curve(key.format("nll"))
        if len(x) and not len(clients[0]):  # with an accuracy, clients are drawn above
            axes[-1].plot(x, values, color=COLOURS[i], lw=2, label=label, **marks(i, len(x)))
    for line in run.metrics:
        if "stage" in line:
            for ax in axes:
                ax.axvline(line[run.clock], color=GREY, lw=1.2, ls=":", label=line["stage"])
    legend_above(axes[-1])
    return figure


def _show_a_span(ax: Axes) -> None:
    """Let an axis of percentages show :data:`SPAN` of them at least: less would draw noise large."""
    low, high = ax.get_ylim()
    if high - low < SPAN:
        middle = min(max((low + high) / 2, SPAN / 2), 100 - SPAN / 2)
        ax.set_ylim(middle - SPAN / 2, middle + SPAN / 2)


def run_psi_figure(run: Run, *, page: bool = False) -> Figure:
    """Learned psi of one run over its clock, in physical units: a panel per kind, ranges as shaded bands."""
    masks = PsiParts.of(run.courses()).keeps
    bands, found = psi_bands([run]), groups(name for name in run.courses() if name not in masks)
    columns = 1 if len(found) < 4 or page else 2
    figure, axes = canvas("Learned hyperparameters", len(found), columns, page=page)
    for ax, group in zip(axes, found, strict=True):
        dress(ax, group.axis, run.clock, group.title, limits=_limits(run))
        if len(group.lines) > MANY:
            draw_many(ax, group, bands, COLOURS[0])
        else:
            for i, (label, names) in enumerate(group.lines.items()):
                colour, ends = COLOURS[i % len(COLOURS)], [bands[name] for name in names]
                for end in ends:
                    own = label if end is ends[0] else None
                    ax.plot(end.x, end.mean, color=colour, ls=DASHES[i], lw=1.8, label=own)
                if len(ends) == 2:
                    ax.fill_between(ends[0].x, ends[0].mean, ends[1].mean, color=colour, alpha=0.12, lw=0)
        if len(group.lines) > 1:
            legend_above(ax, columns=4 // columns)
    return figure


def mask_figure(run: Run, *, page: bool = False) -> Figure:
    """Probabilities of a learned mask to keep inputs: over the run as colours, the last ones as bars."""
    physical = run.physical()
    keep = np.stack([physical[name] for name in PsiParts.of(physical).keeps])  # [inputs, reports], percent
    figure, (over_time, last) = canvas(_title("Learned mask", run), panels=2, page=page)
    x = run.counts()
    dress(over_time, "input", run.clock, "Probability to keep an input")
    over_time.grid(False)
    edges = np.concatenate([x[:1] - (x[1:2] - x[:1] if len(x) > 1 else 1), x])  # a report ends its interval
    shown = over_time.pcolormesh(
        edges, np.arange(len(keep) + 1) - 0.5, keep, cmap="cividis", vmin=0, vmax=100
    )
    over_time.set_ylim(len(keep) - 0.5, -0.5)
    bar = figure.colorbar(shown, ax=over_time, pad=0.01, ticks=[0, 25, 50, 75, 100])
    dress_bar(bar, "probability [%]")
    kept = run.summary.get("lml_iteration", x[-1])  # early stopping ends with an earlier state
    final = keep[:, list(x).index(kept)]
    count = f"{np.sum(final > 50)} of {len(keep)} kept"
    dress(last, "probability [%]", "input", f"At {run.clock} {kept:,.0f}: {count}")
    colours = [COLOURS[0] if p > 50 else COLOURS[1] for p in final]
    last.bar(np.arange(len(keep)), final, color=colours, width=0.75)  # from 0, as psi's names have them
    last.set_axisbelow(True)
    last.axhline(50, color=GREY, lw=1.2, ls="--")
    last.set_ylim(0, 100)
    last.set_xlim(-0.6, len(keep) - 0.4)
    return figure


def _limits(run: Run) -> tuple[float, float]:
    counts = run.counts()
    return float(counts[0]), float(counts[-1])


def _title(what: str, run: Run) -> str:
    return f"{what}: {run.summary['method']}, seed {run.summary['seed']}" if run.summary else what
