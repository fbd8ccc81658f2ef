"""Curves of a comparison: scores and psi of its methods, a colour each; and bars of networks' sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np

from simulations.results.curves import LAST, Band, Run, metric, metric_band, psi_bands, with_curve
from simulations.results.pictures import figures as fig
from simulations.results.psi_parts import Group, groups
from simulations.results.scores import FIRST, SCORES, Score, byte_unit, score_of, size_name, words_of

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
SIZES = {  # what of a row of summary.json's by_architecture is drawn
    **{key: replace(SCORES[key], word=f"Test {SCORES[key].word}") for key in FIRST},
    "upload_bytes": Score("Sent by a client", "MB", 1e-6),
    "download_bytes": Score("Received by a client", "MB", 1e-6),
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
        for one, who, dash in ((key, "all", "-"), (f"{key}_worst_decile", "worst tenth", "--")):
            if found := with_curve({method: members}, one)[method]:
                band = metric_band(found, one, "rounds").scaled(1, score.factor)
                curves.append((method, f"{method}, {who}", band, {"ls": dash}))
    title = f"{score.word.capitalize()} on the clients"
    return _figure(runs, title, score.axis, curves, zoom=False, page=page)


def _figure(
    runs: Runs,
    title: str,
    y: str,
    curves: Sequence[tuple[str, str, Band, dict[str, Any]]],
    x: str = "round",
    limits: tuple[float, float] | None = None,
    averaged: str = AVERAGED,
    zoom: bool = True,
    page: bool = False,
) -> fig.Figure:
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


def psi_figure(runs: Runs, found: Sequence[Group], *, page: bool = False) -> fig.Figure:
    """Learned hyperparameters of every method over rounds, in physical units: a panel per kind."""
    from matplotlib.lines import Line2D

    methods = {method: psi_bands(members) for method, members in runs.items() if members}
    colours = {method: fig.COLOURS[i] for method, i in fig.places(runs).items()}
    figure, axes = fig.canvas(f"Learned hyperparameters, {spread(runs)}", len(found), page=page)
    last = max(len(run.metrics) for members in runs.values() for run in members)
    shown = {name for group in found for name in group.names}
    learners = [method for method, bands in methods.items() if shown & bands.keys()]
    handles: list[Any] = [Line2D([], [], color=colours[method], lw=3) for method in learners]
    labels = list(learners)
    for ax, group in zip(axes, found, strict=True):
        title = "" if page else group.title
        fig.dress(ax, group.axis, "round" if ax is axes[-1] else "", title, limits=(1, last))
        many = len(group.lines) > fig.MANY
        for method in learners:
            bands, colour = methods[method], colours[method]
            if many:
                fig.draw_many(ax, group, bands, colour)
            for names, dash in zip([] if many else group.lines.values(), fig.DASHES, strict=False):
                for name in names:  # a dash for each component
                    if name in bands:
                        fig.draw_band(ax, bands[name], colour, ls=dash)
        dashes, components = _keys(group)
        if page:
            handles += dashes
            labels += components
        else:
            fig.legend_above(ax, (dashes, components))
    fig.legend_below(figure, handles, labels)
    return figure


def _keys(group: Group) -> fig.Keys:
    """What tells the components of a kind of psi apart, whatever the method."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if len(group.lines) > fig.MANY:
        median = Line2D([], [], color=fig.GREY, lw=2)
        return [median, Patch(color=fig.GREY, alpha=0.2, lw=0)], [f"median of {len(group.lines)}", fig.MIDDLE]
    names = list(group.lines) if len(group.lines) > 1 else []
    return [Line2D([], [], color=fig.GREY, ls=dash, lw=1.8) for dash in fig.DASHES[: len(names)]], names


def by_size(runs: Sequence[Run]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each size in finished runs that have several, by the options that make it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for row in run.summary.get("by_architecture", ()):
            found.setdefault(size_name(row), []).append(row)
    return found


def sizes_figure(runs: Runs, key: str, *, page: bool = False) -> fig.Figure:
    """Bars of one of :data:`SIZES`, a group for each size and a colour for each method; means over seeds."""
    score, place = SIZES[key], fig.places(runs)
    rows = {method: sizes for method, members in runs.items() if (sizes := by_size(members))}
    names = list(dict.fromkeys(name for members in rows.values() for name in members))
    figure, (ax,) = fig.canvas(f"{score.heading} by size of the network", page=page)
    wide = 0.8 / len(rows)
    for i, (method, members) in enumerate(rows.items()):
        each = [[row for row in members.get(name, []) if key in row] for name in names]
        shares = [
            [row[key] / (max(1, row["clients"]) if "bytes" in key else 1) for row in one] for one in each
        ]
        values = [score.factor * mean(one) if one else 0.0 for one in shares]
        x = np.arange(len(names)) + (i - (len(rows) - 1) / 2) * wide
        ax.bar(x, values, wide, color=fig.COLOURS[place[method]], label=method)
    fig.dress(ax, score.heading)
    ax.set_xticks(range(len(names)), [fig.wrapped(name, 12) for name in names])
    fig.legend_below(figure, *ax.get_legend_handles_labels())
    return figure
