"""What needs the data, read again as configured: learned augmentation, and which client holds what."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from fedpart import Dataset
from fedpart.data import Splits, has_labels
from fedpart.federated.clients import assigned_chunks
from simulations.building.data import client_names, load_data, split_among_clients
from simulations.config.load import Config, ExperimentConfig
from simulations.folders.data_files import changed_data, in_short, listed_data
from simulations.results.curves import Run
from simulations.results.pictures.run_figures import examples, run_blocks, sheet
from simulations.results.report.sections import PageSection, PageTable, Sheet
from simulations.results.scores import DASH, client_text, span


@dataclass(frozen=True)
class Data:
    """What the runs of a comparison have in common: their data, and who holds which."""

    splits: Splits
    shards: Sequence[Dataset]  # none of a centralised run


def read_data(config: Config, folders: Sequence[Path]) -> Data | str:
    """Read and split the data of runs, without a download; or a sentence on why that cannot be done."""
    if config.data_dir is not None and not Path(config.data_dir).exists():
        return f"The data cannot be read here (there is no {config.data_dir})."
    try:
        listed = listed_data(config)
        if others := next(filter(None, (changed_data(folder, listed) for folder in folders)), None):
            return f"The data are not those that the runs are made of ({in_short(others)})."
        splits = load_data(config, download=False)
        federated = isinstance(config, ExperimentConfig)
        return Data(splits, split_among_clients(config, splits.train) if federated else [])
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        return f"The data cannot be read here ({' '.join(str(error).split()).rstrip('.')})."


def images_section(found: Sequence[Run], data: Data | str) -> PageSection | str | None:
    """What each method's augmentation does, drawn for its first finished seed; or why it is not."""
    from matplotlib.image import imsave

    if isinstance(data, str):
        return f"{data} Neither augmentation nor clients are drawn."
    sheets: dict[str, list[Sheet]] = {}
    (_, names), problems = examples(data.splits), []
    firsts = {run.config.method: run for run in reversed(found) if run.finished}
    for run in (run for run in found if firsts.get(run.config.method) is run):
        try:
            blocks = run_blocks(run.folder, data.splits, limit=None)
        except (ValueError, TypeError, OSError, ImportError) as error:
            problems.append(f"{run.name} cannot be drawn: {error}")
            continue
        for title, block in blocks:
            imsave(stream := io.BytesIO(), sheet(block), format="png")
            image = f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
            sheets.setdefault(run.name, []).append(Sheet(title, image, block.shape[1]))
    if not sheets:
        return " ".join(problems) or None
    text = ""
    config = found[0].config
    if getattr(config, "rotated", False):
        turned = span(-config.max_angle, config.max_angle, "deg")
        text = f"The data had each image turned before, once, by an angle of its own in {turned}."
    text += f" The rows, from above: {', '.join(names)}." if names else ""
    return PageSection("Learned augmentation", sheets=sheets, text=text, lines=problems)


def clients_section(config: ExperimentConfig, data: Data | str) -> PageSection | None:
    """How many examples and labels clients hold, by chunk; None: the data cannot be read."""
    if isinstance(data, str):
        return None
    proportions, rows = config.build_method().proportions(config.chunks), []
    chunks = assigned_chunks(proportions, config.clients, config.seed)
    names = client_names(config, data.splits)
    for chunk in range(1, len(proportions) + 1):
        members = [client for client in range(config.clients) if chunks[client] == chunk]
        if shards := [data.shards[client] for client in members]:
            held = [[len(shard) for shard in shards]]
            held += [[len(shard.targets.unique()) for shard in shards]] * has_labels(shards[0])
            texts = [f"{min(each):,} to {max(each):,}, mean {fmean(each):,.1f}" for each in held]
            such = ", ".join(client_text(client, names) for client in members[:4]) if names else DASH
            such += ", ..." if names and len(members) > 4 else ""
            rows.append([str(chunk), f"{len(shards):,}", *texts, *[DASH] * (2 - len(texts)), such])
    caption = f"What clients hold, by the chunks of {config.method} with seed {config.seed}"
    head = ["chunk", "clients", "examples of each", "labels of each", "names"]
    return PageSection("Clients", tables=[PageTable.of(caption, head, rows)])
