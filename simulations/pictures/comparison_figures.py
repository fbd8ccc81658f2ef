"""Curves of a comparison: the validation metric and psi of its methods, a colour each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simulations.config.load import EVIDENCE_NAMES
from simulations.pictures.colours import COLOURS, GREY, places
from simulations.pictures.figures import (
    DASHES,
    MANY,
    MIDDLE,
    Keys,
    canvas,
    draw_band,
    draw_many,
    dress,
    legend_above,
    legend_below,
    marks,
    over_seeds,
)
from simulations.results.curves import LAST, Band, Run, client_metric, metric, metric_band, psi_bands
from simulations.results.psi_parts import Group, groups
from simulations.results.words import byte_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Runs = Mapping[str, Sequence[Run]]
METRICS = {  # factor, name and unit of a metric in pictures
    "val_accuracy": (100, "validation accuracy", "%"),
    "val_nll": (1, "validation loss", "nats per example"),
    "client_accuracy": (100, "accuracy", "%"),
    "client_nll": (1, "loss", "nats per example"),
}
AVERAGED = f"moving average of up to {LAST} evaluations"
OF_ROUNDS = f"moving averages over the rounds of up to {LAST} evaluations"
TIMES = {"time": "simulated time", "seconds": "measured time"}
TRAFFIC_NAMES = {"upload": "upload", "download": "download", "bytes": "upload + download"}


def spread(runs: Runs) -> str:
    """What a line and its shade are, over the seeds of the runs by method."""
    return over_seeds(max((len(own) for own in runs.values()), default=0))


def evaluated(runs: Runs) -> dict[str, list[Run]]:
    """The runs by method that have an evaluation."""
    key = metric(runs)
    return {method: [run for run in own if len(run.curve(key)[0])] for method, own in runs.items()}


def metric_figure(runs: Runs, against: str, *, page: bool = False) -> Figure:
    """The validation metric of every method that has runs, AVERAGED, with its error (the paper's Figure 10).

    At least one run was evaluated. What it may be drawn against: see :meth:`.Run.along`.
    """
    key = metric(runs)
    factor, label, unit = METRICS[key]
    figure, (ax,) = canvas(f"{label.capitalize()}, {AVERAGED}\n{spread(runs)}", page=page)
    bands = {method: metric_band(own, key, against) for method, own in evaluated(runs).items() if own}
    last = max(band.x[-1] for band in bands.values() if len(band.x))
    scale, x, first = 1.0, "round", 1
    if against in TIMES:
        x, first = f"{TIMES[against]} [s]", 0
    elif against != "rounds":
        scale, bytes_unit = byte_unit(last)
        x, first = f"{TRAFFIC_NAMES[against]}, all clients [{bytes_unit}]", 0
    dress(ax, f"{label} [{unit}]", x, limits=(first, last / scale))
    for method, i in places(runs).items():
        if method in bands:
            band = bands[method] = bands[method].scaled(1 / scale, factor)
            draw_band(ax, band, COLOURS[i], label=method, **marks(i, len(band.x)))
    _zoom(ax, bands.values())
    legend_below(figure, *ax.get_legend_handles_labels())
    return figure


def lml_figure(runs: Runs, *, page: bool = False) -> Figure:
    """L_ML per example over rounds, of the runs that have it, and their validation log-likelihood, dashed.

    Averaged as OF_ROUNDS says. At least one run has it.
    """
    figure, (ax,) = canvas(f"L_ML per example and validation, {OF_ROUNDS}\n{spread(runs)}", page=page)
    bands = []
    place = places(runs)
    for method, own in with_lml(runs).items():
        for key, sign, label, dash in (
            ("lml", 1, EVIDENCE_NAMES["lml"], "-"),
            ("val_nll", -1, "validation", "--"),
        ):
            if own and all(len(run.curve(key)[0]) for run in own):
                most = LAST * (own[0].config.evaluate_every if key == "lml" else 1)
                bands.append(metric_band(own, key, "rounds", most).scaled(1, sign))
                draw_band(ax, bands[-1], COLOURS[place[method]], label=f"{method}, {label}", ls=dash)
    last = max(band.x[-1] for band in bands)
    dress(ax, "log-likelihood [nats per example]", "round", limits=(1, last))
    _zoom(ax, bands)
    legend_below(figure, *ax.get_legend_handles_labels())
    return figure


def clients_figure(runs: Runs, *, page: bool = False) -> Figure:
    """Accuracy (or loss) on what clients hold out, over rounds: of all, and of the worst tenth, dashed.

    Both are AVERAGED. At least one run has been evaluated by its clients.
    """
    key = client_metric(runs)
    factor, label, unit = METRICS[key]
    figure, (ax,) = canvas(f"{label.capitalize()} on the clients, {AVERAGED}\n{spread(runs)}", page=page)
    last, place = 1.0, places(runs)
    for method, own in runs.items():
        for one, who, dash in ((key, "all", "-"), (f"{key}_worst_decile", "worst tenth", "--")):
            found = [run for run in own if len(run.curve(one)[0])]
            if found:
                band = metric_band(found, one, "rounds").scaled(1, factor)
                draw_band(ax, band, COLOURS[place[method]], label=f"{method}, {who}", ls=dash)
                last = max(last, band.x[-1])
    dress(ax, f"{label} [{unit}]", "round", limits=(1, last))
    legend_below(figure, *ax.get_legend_handles_labels())
    return figure


def with_lml(runs: Runs) -> dict[str, list[Run]]:
    """The runs by method that have an L_ML per example."""
    return {method: [run for run in own if len(run.curve("lml")[0])] for method, own in runs.items()}


def _zoom(ax: Axes, bands: Iterable[Band]) -> None:
    """Fit the y axis to bands without the first tenth of their points, which lie far from the rest."""
    late = []
    for band in bands:
        error = 0.0 if band.error is None else band.error
        late += [(band.mean + side * error)[len(band.x) // 10 :] for side in (-1, 1)]
    values = np.concatenate(late)
    low, high = values.min(), values.max()
    if low < high:
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def psi_groups(runs: Runs) -> list[Group]:
    """Kinds of psi that any of the runs has learned."""
    bands = [psi_bands(own) for own in runs.values() if own]
    return groups(dict.fromkeys(name for learned in bands for name in learned))


def psi_figure(runs: Runs, found: Sequence[Group], *, page: bool = False) -> Figure:
    """Learned hyperparameters of every method over rounds, in physical units: a panel per kind.

    A ``page`` (see :func:`.canvas`) has room for one.
    """
    from matplotlib.lines import Line2D

    methods = {method: psi_bands(own) for method, own in runs.items() if own}
    colours = {method: COLOURS[i] for method, i in places(runs).items()}
    figure, axes = canvas(f"Learned hyperparameters, {spread(runs)}", len(found), page=page)
    last = max(len(run.metrics) for own in runs.values() for run in own)
    shown = {name for group in found for name in group.names}
    learners = [method for method, bands in methods.items() if shown & bands.keys()]
    handles: list[Any] = [Line2D([], [], color=colours[method], lw=3) for method in learners]
    labels = list(learners)
    for ax, group in zip(axes, found, strict=True):
        title = "" if page else group.title
        dress(ax, group.axis, "round" if ax is axes[-1] else "", title, limits=(1, last))
        for method in learners:
            bands, colour = methods[method], colours[method]
            if len(group.lines) > MANY:
                draw_many(ax, group, bands, colour)
                continue
            for names, dash in zip(group.lines.values(), DASHES, strict=False):  # a dash for each component
                for name in names:
                    if name in bands:
                        draw_band(ax, bands[name], colour, ls=dash)
        dashes, components = _keys(group)
        if page:
            handles += dashes
            labels += components
        elif components:
            legend_above(ax, (dashes, components))
    legend_below(figure, handles, labels)
    return figure


def _keys(group: Group) -> Keys:
    """What tells the components of a kind of psi apart, whatever the method."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if len(group.lines) > MANY:
        median = Line2D([], [], color=GREY, lw=2)
        return [median, Patch(color=GREY, alpha=0.2, lw=0)], [f"median of {len(group.lines)}", MIDDLE]
    if len(group.lines) == 1:
        return [], []
    dashes = DASHES[: len(group.lines)]
    handles = [Line2D([], [], color=GREY, ls=dash, lw=1.8) for dash in dashes]
    return handles, list(group.lines)
