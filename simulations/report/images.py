"""Sections of the page that need the data: what a learned augmentation does to images, and who holds what."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

from torch import Tensor

from simulations.config.load import ExperimentConfig
from simulations.pictures.transform_figures import examples, run_blocks, sheet
from simulations.report.clients import Clients, client_charts
from simulations.report.data import Data
from simulations.report.parts import PageSection, Sheet
from simulations.results.curves import Run
from simulations.results.words import span


def images_section(found: Sequence[Run], data: Data | str) -> PageSection | str | None:
    """What the augmentation of each method that has one does, drawn for its first finished seed.

    ``data`` are what the images are from, or a sentence on why they are missing; ``found`` is sorted by seed.
    None: no finished run has any; a sentence: some cannot be drawn.
    """
    if isinstance(data, str):
        return f"{data} Neither augmentation nor clients are drawn."
    sheets: dict[str, list[Sheet]] = {}
    (_, names), seen, problems = examples(data.splits), set(), []
    for run in found:
        if run.config.method in seen or not run.finished:
            continue
        seen.add(run.config.method)
        try:
            blocks = run_blocks(run.folder, data.splits, limit=None)
        except (ValueError, TypeError, OSError, ImportError) as error:
            problems.append(f"{run.name} cannot be drawn: {error}")
            continue
        if blocks:
            sheets[run.name] = [Sheet(title, _png_url(block), block.shape[1]) for title, block in blocks]
    if not sheets:
        return " ".join(problems) or None
    text = (
        "Training images, and how the network is shown them: samples under the ranges with which a run "
        "started, and under those that it has learned. Above each: all that was drawn from."
    )
    config = found[0].config
    if getattr(config, "rotated", False):
        turned = span(-config.max_angle, config.max_angle, "deg")
        text += f" The data had each image turned before, once, by an angle of its own in {turned}."
    if names:
        text += f" The rows, from above: {', '.join(names)}."
    return PageSection("Learned augmentation", sheets=sheets, text=text, lines=problems)


def clients_section(config: ExperimentConfig, data: Data | str) -> PageSection | None:
    """Who holds which examples, and the chunks of a run; None: the data cannot be read, or say neither."""
    if isinstance(data, str):
        return None
    clients = Clients.of(config, data.shards, data.splits.num_classes)
    charts = client_charts(clients, data.splits.classes)
    if not charts:
        return None
    chunks = f"Chunks are those of {config.method} with seed {config.seed}."
    return PageSection("Clients", charts, text=chunks if clients.chunks.max() > 1 else "")


def _png_url(images: Tensor) -> str:
    """:func:`.sheet` as the text of a PNG's data URL."""
    from matplotlib.image import imsave

    stream = io.BytesIO()
    imsave(stream, sheet(images), format="png")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
