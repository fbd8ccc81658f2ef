"""Sections of the page about one comparison: charts and pictures, or a sentence that says what is missing."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from simulations.config.load import ExperimentConfig
from simulations.pictures.comparison_figures import (
    AVERAGED,
    METRICS,
    OF_ROUNDS,
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
from simulations.pictures.transform_figures import examples, run_blocks, sheet
from simulations.report.clients import Clients, client_charts
from simulations.report.data import Data
from simulations.results.curves import LAST, Run, client_metric, metric, seconds_to_accuracy
from simulations.results.words import duration


@dataclass(frozen=True)
class Sheet:
    """Images in rows and columns, as a data URL."""

    title: str  # above them, of one line or two
    image: str
    columns: int


@dataclass(frozen=True)
class PageSection:
    """A part of the page under a heading of its own."""

    heading: str
    charts: Sequence[Chart] = ()  # drawn side by side where there is room
    sheets: Mapping[str, Sequence[Sheet]] = field(default_factory=dict)  # in groups with a heading each
    text: str = ""  # above charts and sheets, or in their place
    wide: bool = False  # whether the charts need room


def curves_section(runs: Mapping[str, Sequence[Run]]) -> PageSection:
    """Learning curves of the runs by method: against rounds and against bytes up, down and together."""
    shown, (_, label, _) = evaluated(runs), METRICS[metric(runs)]
    text = (
        f"A point is the mean of the {LAST} evaluations up to it, or of all if there are fewer, so that a "
        "curve ends at the validation score of the table. The y axis is fitted to what comes after the first "
        "tenth of the evaluations."
    )
    if not any(shown.values()):
        return PageSection("Learning curves", text="No run has been evaluated yet.", wide=True)
    charts = [
        Chart(
            f"{label.capitalize()} over {TRAFFIC_NAMES.get(against, against)}",
            svg(metric_figure(shown, against, page=True)),
            f"{AVERAGED.capitalize()}. {spread(runs).capitalize()}.",
        )
        for against in ("rounds", *TRAFFIC_NAMES)
    ]
    return PageSection("Learning curves", charts, text=text, wide=True)


def clock_section(runs: Mapping[str, Sequence[Run]]) -> PageSection | None:
    """Learning curves over the simulated time of the runs by method; None: no run has a clock."""
    timed = {
        method: [run for run in own if run.metrics and "simulated_seconds" in run.metrics[-1]]
        for method, own in evaluated(runs).items()
    }
    if not any(timed.values()):
        return None
    sentences = [
        "The time that the clients' simulated devices take, without evaluations; and after how much of it an "
        "evaluation first found so many right."
    ]
    for own in timed.values():
        for run in own:
            reached = seconds_to_accuracy(run.metrics).items()
            told = ", ".join(f"{float(level):.0%} after {duration(seconds)}" for level, seconds in reached)
            whole = duration(run.metrics[-1]["simulated_seconds"])
            shares = "; ".join(f"{share:.0%}" for share in run.summary.get("answers_chunks", ()))
            chunks = f" Answers by chunk: {shares}." if shares else ""
            sentences.append(f"{run.name}: {told or 'less than 50%'}, of {whole}.{chunks}")
    note = f"{AVERAGED.capitalize()}. {spread(runs).capitalize()}."
    title = f"{METRICS[metric(runs)][1].capitalize()} over simulated time"
    chart = Chart(title, svg(metric_figure(timed, "time", page=True)), note)
    return PageSection("Simulated time", [chart], text=" ".join(sentences), wide=True)


def evaluation_section(runs: Mapping[str, Sequence[Run]]) -> PageSection | None:
    """What the clients found on examples that they hold out, by method; None: they were not asked."""
    key = client_metric(runs)
    asked = {method: [run for run in own if len(run.curve(key)[0])] for method, own in runs.items()}
    if not any(asked.values()):
        return None
    sentences = [
        "Clients have scored the network on a share of their examples that neither weights nor "
        "hyperparameters have learned from, in these runs. Means are over examples; the worst tenth are the "
        "clients with the lowest accuracy, or the highest loss, in that round."
    ]
    for method, own in asked.items():
        for run in own:
            line = [one for one in run.metrics if one.get(key) is not None][-1]
            shown = "{:.1%}" if key == "client_accuracy" else "{:.3f} nats"
            found = line.get(f"{key}_chunks") or []
            chunks = ", ".join("none" if x is None else shown.format(x) for x in found)
            sentences.append(f"{method}, seed {run.config.seed}, round {line['round']}: by chunk {chunks}.")
    note = f"{AVERAGED.capitalize()}. {spread(runs).capitalize()}."
    title = f"{METRICS[key][1].capitalize()} on the clients over rounds"
    chart = Chart(title, svg(clients_figure(asked, page=True)), note)
    return PageSection("Evaluation on the clients", [chart], text=" ".join(sentences), wide=True)


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
        Chart(SIZES[key][1], svg(sizes_figure(runs, key, page=True)), f"{spread(runs).capitalize()}.")
        for key in shown
    ]
    return PageSection("Sizes of the network", charts, text=text)


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
    chart = Chart("L_ML per example over rounds", svg(lml_figure(runs, page=True)), note)
    return PageSection("Without held-out data", [chart], text=text, wide=True)


def psi_section(runs: Mapping[str, Sequence[Run]]) -> PageSection:
    """Hyperparameters over rounds of the runs by method, a chart per kind."""
    charts = []
    for group in psi_groups(runs):
        pairs = len(next(iter(group.lines.values()))) > 1
        note = "Two lines of a kind are the ends of a range. " if pairs else ""
        if len(group.lines) > MANY:
            note = f"Median of {len(group.lines)}, and where the middle 80% lie. "
        note += f"{spread(runs).capitalize()}."
        charts.append(Chart(group.title, svg(psi_figure(runs, [group], page=True)), note))
    text = "" if charts else "No hyperparameter has changed in any run."
    return PageSection("Hyperparameters over rounds", charts, text=text)


def images_section(found: Sequence[Run], data: Data | str) -> PageSection:
    """What the augmentation of each method that has learned one does, drawn for its first finished seed.

    ``data`` are what the images are from, or a sentence on why they are missing; ``found`` is sorted by seed.
    """
    heading = "Learned augmentation"
    if isinstance(data, str):
        return PageSection(heading, text=data)
    sheets: dict[str, list[Sheet]] = {}
    (_, names), seen, sentences = examples(data.splits), set(), []
    for run in found:
        if run.config.method in seen or not run.finished:
            continue
        seen.add(run.config.method)
        try:
            blocks = run_blocks(run.folder, data.splits)
        except (ValueError, TypeError, OSError, ImportError) as error:
            sentences.append(f"{run.name} cannot be drawn: {error}")
            continue
        if blocks:
            sheets[run.name] = [Sheet(title, _png_url(block), block.shape[1]) for title, block in blocks]
    if sheets:
        sentences.append(
            "Training images, and how the network is shown them: samples under the ranges with which a run "
            "started, and under those that it has learned."
        )
        if names:
            sentences.append(f"The rows, from above: {', '.join(names)}.")
    elif not seen:
        sentences.append("No run is finished yet; a finished one is drawn here.")
    elif not sentences:
        sentences.append("No finished run has images and an augmentation of them.")
    return PageSection(heading, sheets=sheets, text=" ".join(sentences))


def clients_section(config: ExperimentConfig, data: Data | str) -> PageSection:
    """Who holds which examples, and the chunks of a run; or, from ``data``, why that is missing."""
    heading = "Clients"
    if isinstance(data, str):
        return PageSection(heading, text=data)
    clients = Clients.of(config, data.shards, data.splits.num_classes)
    charts = client_charts(clients, data.splits.classes)
    chunks = f"Chunks are those of {config.method} with seed {config.seed}."
    sentences = [chunks if clients.chunks.max() > 1 else f"{config.method} has no chunks."]
    if clients.labels is None:
        sentences.append("The targets are not labels.")
    if clients.angles is None:
        sentences.append("The images were not rotated, so there are no angles to show.")
    return PageSection(heading, charts, text=" ".join(sentences), wide=True)


def _png_url(images: Tensor) -> str:
    """:func:`.sheet` as the text of a PNG's data URL."""
    from matplotlib.image import imsave

    stream = io.BytesIO()
    imsave(stream, sheet(images), format="png")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
