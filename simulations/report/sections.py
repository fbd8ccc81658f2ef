"""Sections of the page about one comparison: charts and pictures, or a sentence that says what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simulations.building.task import saved_psi
from simulations.config.load import ExperimentConfig
from simulations.folders.cell import Cell
from simulations.pictures.plots import spread
from simulations.pictures.transform_figures import examples, run_task, shown_blocks
from simulations.report.charts import Chart, client_charts, contact_sheet, metric_charts, psi_charts
from simulations.report.clients import Clients
from simulations.report.data import Data
from simulations.results.curves import LAST, Run, metric


@dataclass(frozen=True)
class Sheet:
    """Images in rows and columns.

    Attributes:
        title: above them, of one line or two.
        image: a data URL.
        columns: images side by side.
    """

    title: str
    image: str
    columns: int


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading of its own.

    Attributes:
        heading: what it shows.
        charts: drawn side by side where there is room.
        sheets: images, in groups with a heading each.
        text: a sentence above them, or in their place.
        wide: whether the charts need room.
    """

    heading: str
    charts: Sequence[Chart] = ()
    sheets: Mapping[str, Sequence[Sheet]] = field(default_factory=dict)
    text: str = ""
    wide: bool = False


def curves_section(runs: Mapping[str, Sequence[Run]]) -> Section:
    """Learning curves of the runs by method."""
    charts = metric_charts(runs, metric(runs), _sentence(runs))
    text = (
        f"A point is the mean of the {LAST} evaluations up to it, or of all if there are fewer, so that a "
        "curve ends at the validation score of the table. The y axis is fitted to what comes after the first "
        "tenth of the evaluations."
    )
    return Section(
        "Learning curves", charts, text=text if charts else "No run has been evaluated yet.", wide=True
    )


def psi_section(runs: Mapping[str, Sequence[Run]]) -> Section:
    """Hyperparameters over rounds of the runs by method."""
    charts = psi_charts(runs, _sentence(runs))
    text = "" if charts else "No hyperparameter has changed in any run."
    return Section("Hyperparameters over rounds", charts, text=text)


def images_section(cells: Sequence[Cell], data: Data | str) -> Section:
    """What the augmentation of each method that has learned one does, drawn for its first finished seed.

    Args:
        cells: sorted by method and seed.
        data: what the images are from, or a sentence on why they are missing.
    """
    heading = "Learned augmentation"
    if isinstance(data, str):
        return Section(heading, text=data)
    sheets: dict[str, list[Sheet]] = {}
    (images, names), seen, sentences = examples(data.splits), set(), []
    for cell in cells:
        if cell.config.method in seen or not cell.finished():
            continue
        seen.add(cell.config.method)
        try:
            task = run_task(cell.folder, data.splits)
            blocks = [] if task is None else shown_blocks(task, saved_psi(cell.folder, task), images)
        except (ValueError, TypeError, OSError, ImportError) as error:
            sentences.append(f"{cell.name} cannot be drawn: {error}")
            continue
        if blocks:
            found = [("training\nimages", images[:, None]), *blocks]
            sheets[cell.name] = [Sheet(title, contact_sheet(block), block.shape[1]) for title, block in found]
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
    return Section(heading, sheets=sheets, text=" ".join(sentences))


def clients_section(config: ExperimentConfig, data: Data | str) -> Section:
    """Who holds which examples.

    Args:
        config: of a run whose chunks are shown.
        data: the clients' data, or a sentence on why they are missing.
    """
    heading = "Clients"
    if isinstance(data, str):
        return Section(heading, text=data)
    clients = Clients.of(config, data.shards, data.splits.num_classes)
    charts = client_charts(clients, data.splits.classes)
    sentences = []
    if clients.chunks.max() > 1:
        sentences.append(f"Chunks are those of {config.method} with seed {config.seed}.")
    else:
        sentences.append(f"{config.method} has no chunks.")
    if clients.labels is None:
        sentences.append("The targets are not labels.")
    if clients.angles is None:
        sentences.append("The images were not rotated, so there are no angles to show.")
    return Section(heading, charts, text=" ".join(sentences), wide=True)


def _sentence(runs: Mapping[str, Sequence[Run]]) -> str:
    text = spread(runs)
    return f"{text[0].upper()}{text[1:]}."
