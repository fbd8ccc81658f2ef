"""Curves of a comparison: scores and psi of its methods, a colour each; and bars of networks' sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simulations.results.curves import LAST, Band, Run, metric, metric_band, psi_bands, with_curve
from simulations.results.pictures import figures as fig
from simulations.results.psi_parts import Group, groups
from simulations.results.scores import SCORES, byte_unit, score_of, words_of

Runs = Mapping[str, Sequence[Run]]
AVERAGED = f"moving average of up to {LAST} evaluations"
OF_ROUNDS = f"moving averages over the rounds of up to {LAST} evaluations"
AXES = {  # what a score may be drawn against, see :meth:`.Run.along`
    "rounds": "round",
    "upload": "upload",
    "download": "download",
    "bytes": "upload + download",
    "seconds": "measured time",
    "time": "simulated time",
}


def spread(runs: Runs) -> str:
    """What a line and its shade are, over the seeds of the runs by method."""
    return fig.over_seeds(max((len(members) for members in runs.values()), default=0))


def metric_figure(runs: Runs, against: str, *, page: bool = False) -> fig.Figure:
    """The validation metric of every method that has runs, with its error (the paper's Figure 10)."""
    key = metric(runs)
    known = {method: members for method, members in with_curve(runs, key).items() if members}
    bands = {method: metric_band(members, key, against) for method, members in known.items()}
    last, scale, x = max(band.x[-1] for band in bands.values() if len(band.x)), 1.0, AXES[against]
    if against in ("time", "seconds"):
        x += " [s]"
    elif against != "rounds":
        scale, unit = byte_unit(last)
        x += f", all clients [{unit}]"
    curves, score = [], score_of(key)
    for method, i in fig.places(runs).items():
        if method in bands:
            band = bands[method].scaled(1 / scale, score.factor)
            curves.append((method, method, band, fig.marks(i, len(band.x))))
    limits, y = (float(against == "rounds"), last / scale), replace(score, word=words_of(key)).axis
    return _figure(runs, words_of(key).capitalize(), y, curves, x, limits, page=page)


def lml_figure(runs: Runs, *, page: bool = False) -> fig.Figure:
    """L_ML per example over rounds, of the runs that have it, and their validation log-likelihood, dashed."""
    curves, name = [], SCORES["lml"].word
    for method, members in with_curve(runs, "lml").items():
        every = LAST * members[0].config.evaluate_every if members else 0
        unseen, looked = ("lml", 1, name, every, "-"), ("val_nll", -1, "validation", LAST, "--")
        for key, sign, label, most, dash in (unseen, looked):
            if members and all(len(run.curve(key)[0]) for run in members):
                band = metric_band(members, key, "rounds", most).scaled(1, sign)
                curves.append((method, f"{method}, {label}", band, {"ls": dash}))
    title = f"{name} per example and validation"
    return _figure(runs, title, SCORES["log_likelihood"].axis, curves, averaged=OF_ROUNDS, page=page)


def clients_figure(runs: Runs, *, page: bool = False) -> fig.Figure:
    """Accuracy (or loss) on what clients hold out, over rounds: of all, and of the worst tenth, dashed."""
    key, curves = metric(runs, "client"), []
    score = score_of(key)
    for method, members in runs.items():
        for which, who, dash in ((key, "all", "-"), (f"{key}_worst_decile", "worst tenth", "--")):
            if known := with_curve({method: members}, which)[method]:
                band = metric_band(known, which, "rounds").scaled(1, score.factor)
                curves.append((method, f"{method}, {who}", band, {"ls": dash}))
    title = f"{score.word.capitalize()} on the clients"
    return _figure(runs, title, score.axis, curves, zoom=False, page=page)


def _figure(
    runs: Runs, title: str, y: str, curves: Sequence[tuple[str, str, Band, dict[str, Any]]], x: str = "round",
    limits: tuple[float, float] | None = None, averaged: str = AVERAGED, zoom: bool = True,
    page: bool = False,
) -> fig.Figure:  # fmt: skip
    """Bands with label and style; the y axis is fitted to them without the first tenth of their points."""
    figure, (ax,) = fig.canvas(f"{title}, {averaged}\n{spread(runs)}", page=page)
    fig.dress(ax, y, x, limits=limits or (1, max(band.x[-1] for _, _, band, _ in curves)))
    place, late = fig.places(runs), []
    for method, label, band, style in curves:
        fig.draw_band(ax, band, fig.COLOURS[place[method]], label=label, **style)
        late += [edge[len(band.x) // 10 :] for edge in band.edges or [band.mean]]
    low, high = np.concatenate(late).min(), np.concatenate(late).max()
    if zoom and low < high:
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    fig.legend_below(figure, *ax.get_legend_handles_labels())
    return figure


def psi_groups(runs: Runs) -> list[Group]:
    """Kinds of psi that any of the runs has learned."""
    bands = [psi_bands(members) for members in runs.values() if members]
    return groups(dict.fromkeys(name for learned in bands for name in learned))


def psi_figure(runs: Runs, found: Sequence[Group], *, columns: int = 1, page: bool = False) -> fig.Figure:
    """Learned hyperparameters over rounds, in physical units: a panel per kind.

    Of several methods each has its colour, and its components dashes. Of a single one the components have
    colours, and what lies between the ends of a range is shaded."""
    from matplotlib.lines import Line2D

    methods = {method: psi_bands(members) for method, members in runs.items() if members}
    place, every = fig.places(runs), [run for members in runs.values() for run in members]
    several, columns = len(runs) > 1, 1 if page else columns
    title = f"Learned hyperparameters, {spread(runs)}" if several else "Learned hyperparameters"
    figure, axes = fig.canvas(title, len(found), columns, page=page)
    limits = (float(every[0].counts()[0]), float(max(run.counts()[-1] for run in every)))
    shown = {name for group in found for name in group.names}
    learners = {method: bands for method, bands in methods.items() if shown & bands.keys()}
    labels = [*learners] if several else []
    handles: list[Any] = [Line2D([], [], color=fig.COLOURS[place[method]], lw=3) for method in labels]
    for ax, group in zip(axes, found, strict=True):
        x = every[0].clock if not several or ax is axes[-1] else ""
        fig.dress(ax, group.axis, x, "" if page else group.title, limits=limits)
        many = len(group.lines) > fig.MANY
        for method, bands in learners.items():
            if many:
                fig.draw_many(ax, group, bands, fig.COLOURS[place[method] if several else 0])
            for i, names in enumerate([] if many else group.lines.values()):
                ends = [bands[name] for name in names if name in bands]
                colour = fig.COLOURS[place[method] if several else i]
                for end in ends:
                    fig.draw_band(ax, end, colour, ls=fig.DASHES[i])
                if len(ends) == 2 and not several:
                    ax.fill_between(ends[0].x, ends[0].mean, ends[1].mean, color=colour, alpha=0.12, lw=0)
        keys = _keys(group, several)
        if page:
            handles, labels = [*handles, *keys[0]], [*labels, *keys[1]]
        else:
            fig.legend_above(ax, keys, columns=4 // columns)
    fig.legend_below(figure, handles, labels)
    return figure


def _keys(group: Group, several: bool) -> fig.Keys:
    """What tells the components of a kind of psi apart; of ``several`` methods, whatever the method."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if len(group.lines) > fig.MANY:
        colour = fig.GREY if several else fig.COLOURS[0]
        median = Line2D([], [], color=colour, lw=2)
        return [median, Patch(color=colour, alpha=0.2, lw=0)], [f"median of {len(group.lines)}", fig.MIDDLE]
    names = list(group.lines) if len(group.lines) > 1 else []
    colours = [fig.GREY] * len(names) if several else fig.COLOURS
    forms = zip(colours, fig.DASHES, names, strict=False)
    return [Line2D([], [], color=colour, ls=dash, lw=1.8) for colour, dash, _ in forms], names
