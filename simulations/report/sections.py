"""Sections of the page about a comparison: charts, None where there is nothing to show, or why that is so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulations.pictures.comparison_figures import (
    AVERAGED,
    METRICS,
    OF_ROUNDS,
    TIMES,
    TRAFFIC_NAMES,
    clients_figure,
    evaluated,
    lml_figure,
    metric_figure,
    psi_figure,
    psi_groups,
    spread,
    with_lml,
)
from simulations.pictures.figures import MANY, Chart, svg
from simulations.pictures.sizes_figure import SIZES, by_size, sizes_figure
from simulations.report.parts import PageSection
from simulations.results.curves import LAST, Run, client_metric, metric, seconds_to_accuracy
from simulations.results.words import duration


def curves_section(runs: Mapping[str, Sequence[Run]]) -> PageSection | str:
    """Learning curves of the runs by method, against rounds, bytes and times; or why there are none."""
    shown, (_, label, _) = evaluated(runs), METRICS[metric(runs)]
    if not any(shown.values()):
        return "No run has been evaluated yet."
    text = (
        f"A point is the mean of the {LAST} evaluations up to it, or of half if there are fewer, so that a "
        "curve ends at the validation score of the table. The y axis is fitted to what comes after the first "
        "tenth of the evaluations."
    )
    kinds = {"rounds": "rounds", **TRAFFIC_NAMES, "seconds": TIMES["seconds"]}
    views = {name: svg(metric_figure(shown, against, page=True)) for against, name in kinds.items()}
    if any(clocked(shown).values()):
        views[TIMES["time"]] = svg(metric_figure(clocked(shown), "time", page=True))
    note = f"{AVERAGED.capitalize()}. {spread(runs).capitalize()}."
    if any(run.summary.get("runs_at_a_time", 1) > 1 for own in runs.values() for run in own):
        note += " Time was measured while several runs shared the machine."
    return PageSection("Learning curves", [Chart(label.capitalize(), views, note)], text=text)


def clocked(runs: Mapping[str, Sequence[Run]]) -> dict[str, list[Run]]:
    """The runs by method that have a simulated clock."""
    return {
        method: [run for run in own if run.metrics and "simulated_seconds" in run.metrics[-1]]
        for method, own in runs.items()
    }


def clock_section(runs: Mapping[str, Sequence[Run]]) -> PageSection | None:
    """The simulated time of the runs by method to levels of accuracy; None: no run has a clock."""
    timed = clocked(evaluated(runs))
    if not any(timed.values()):
        return None
    lines = []
    for own in timed.values():
        for run in own:
            reached = seconds_to_accuracy(run.metrics).items()
            told = ", ".join(f"{float(level):.0%} after {duration(seconds)}" for level, seconds in reached)
            whole = duration(run.metrics[-1]["simulated_seconds"])
            shares = "; ".join(f"{share:.0%}" for share in run.summary.get("answers_chunks", ()))
            chunks = f" Answers by chunk: {shares}." if shares else ""
            lines.append(f"{run.name}: {told or 'less than 50%'}, of {whole}.{chunks}")
    text = (
        "The time that the clients' simulated devices take, without evaluations; and after how much of it an "
        "evaluation first found so many right. The learning curves can be drawn against it."
    )
    return PageSection("Simulated time", text=text, lines=lines)


def evaluation_section(runs: Mapping[str, Sequence[Run]]) -> PageSection | None:
    """What the clients found on examples that they hold out, by method; None: they were not asked."""
    key = client_metric(runs)
    asked = {method: [run for run in own if len(run.curve(key)[0])] for method, own in runs.items()}
    if not any(asked.values()):
        return None
    text = (
        "Clients have scored the network on a share of their examples that neither weights nor "
        "hyperparameters have learned from, in these runs. Means are over examples; the worst tenth are the "
        "clients with the lowest accuracy, or the highest loss, in that round."
    )
    lines = []
    for method, own in asked.items():
        for run in own:
            line = [one for one in run.metrics if one.get(key) is not None][-1]
            shown = "{:.1%}" if key == "client_accuracy" else "{:.3f} nats"
            told = "; ".join(
                f"by {kind} " + ", ".join("none" if x is None else shown.format(x) for x in found)
                for kind in ("chunk", "cap")
                if (found := line.get(f"{key}_{kind}s"))
            )
            lines.append(f"{method}, seed {run.config.seed}, round {line['round']}: {told}.")
    note = f"{AVERAGED.capitalize()}. {spread(runs).capitalize()}."
    title = f"{METRICS[key][1].capitalize()} on the clients over rounds"
    chart = Chart(title, {"": svg(clients_figure(asked, page=True))}, note)
    return PageSection("Evaluation on the clients", [chart], text=text, lines=lines)


def sizes_section(runs: Mapping[str, Sequence[Run]]) -> PageSection | None:
    """Accuracy and bytes of each size of the network, by method; None: no finished run has several."""
    rows = [row for own in runs.values() for size in by_size(own).values() for row in size]
    if not rows:
        return None
    text = (
        "Clients have networks of different sizes, whose numbers are parts of the largest one's. "
        + "; ".join(f"{name}: {own[0]['parameters']:,} parameters" for name, own in _sizes(runs).items())
        + "."
    )
    shown = [key for key in SIZES if any(row.get(key) is not None for row in rows)]
    if "accuracy" in shown:
        shown.remove("nll")
    charts = [
        Chart(SIZES[key][1], {"": svg(sizes_figure(runs, key, page=True))}, f"{spread(runs).capitalize()}.")
        for key in shown
    ]
    return PageSection("Sizes of the network", charts, text=text)


def caps_section(runs: Mapping[str, Sequence[Run]]) -> PageSection | None:
    """What clients of each cap sent and received, by run; None: no finished run has caps."""
    lines = []
    for own in runs.values():
        for run in own:
            told = "; ".join(
                f"cap {row['cap']}: {row['clients']} clients, each sent "
                f"{row['upload_bytes'] / row['clients'] / 1e6:,.1f} MB and received "
                f"{row['download_bytes'] / row['clients'] / 1e6:,.1f} MB"
                for row in run.summary.get("by_cap", ())
            )
            lines += [f"{run.name}: {told}."] if told else []
    if not lines:
        return None
    text = "A client with the cap c computes the subnetworks 1 to c, and trains no later partition."
    return PageSection("Caps of the devices", text=text, lines=lines)


def _sizes(runs: Mapping[str, Sequence[Run]]) -> dict[str, list[dict[str, Any]]]:
    return by_size([run for own in runs.values() for run in own])


def lml_section(runs: Mapping[str, Sequence[Run]]) -> PageSection | None:
    """What is known without held-out data: L_ML per example of the runs by method; None: no run has it."""
    if not any(with_lml(runs).values()):
        return None
    text = (
        "The clients of chunk k score subnetwork k-1, which has never seen them: an estimate of how well the "
        "network does on new examples, from the training itself. It needs no validation data; where there "
        "are any, their log-likelihood is drawn beside it. A subnetwork has fewer trained weights than the "
        "network that is used, and its dropout is on."
    )
    note = f"{OF_ROUNDS.capitalize()}. {spread(runs).capitalize()}."
    chart = Chart("L_ML per example over rounds", {"": svg(lml_figure(runs, page=True))}, note)
    return PageSection("Without held-out data", [chart], text=text)


def psi_section(runs: Mapping[str, Sequence[Run]]) -> PageSection | None:
    """Hyperparameters over rounds of the runs by method, a chart per kind; None: no run has learned any."""
    charts = []
    for group in psi_groups(runs):
        pairs = len(next(iter(group.lines.values()))) > 1
        note = "Two lines of a kind are the ends of a range. " if pairs else ""
        if len(group.lines) > MANY:
            note = f"Median of {len(group.lines)}, and where the middle 80% lie. "
        note += f"{spread(runs).capitalize()}."
        charts.append(Chart(group.title, {"": svg(psi_figure(runs, [group], page=True))}, note))
    return PageSection("Hyperparameters over rounds", charts) if charts else None
