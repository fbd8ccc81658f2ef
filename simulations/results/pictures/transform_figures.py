"""What learned transforms do to images: a few, each beside samples under the initial and the final psi."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpart import Task
from fedpart.data import Splits, has_labels
from fedpart.randomness.noise import Noise, NoiseKey
from simulations.building.task import build_task, saved_psi
from simulations.folders.run_directory import saved_config
from simulations.results.pictures import figures as fig
from simulations.results.psi_parts import compact, in_words

IMAGES, SAMPLES = 5, 6
Block = tuple[str, Tensor]  # a title of up to two lines, and images [n, columns, c, h, w]


def run_blocks(folder: str | Path, splits: Splits, limit: int | None = 2) -> list[Block]:
    """Training images of a finished run and samples of its transforms; none where nothing changes them."""
    config = saved_config(folder)
    shape = splits.train.input_shape
    if not isinstance(shape, tuple) or len(shape) != 3 or shape[0] not in (1, 3):
        return []
    task = config.build_method().prepare(build_task(config, splits.num_classes, shape))
    psi, (images, _) = saved_psi(folder, task), examples(splits)
    if torch.equal(sample(task, psi, images, 1)[:, 0].to(images.dtype), images):
        return []
    blocks, spread = shown_blocks(task, psi, images, limit), config.normalise
    if spread is None:
        return blocks
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (spread.mean, spread.std))
    return [(title, shown * std + mean) for title, shown in blocks]


def examples(splits: Splits) -> tuple[Tensor, list[str]]:
    """A few training images ``[n, c, h, w]``, of different classes if there are any; their names, if any."""
    targets = splits.train.targets
    if not has_labels(splits.train):
        return splits.train.inputs[:IMAGES], []
    labels = targets.unique()[:IMAGES]
    first = [int((targets == label).nonzero()[0]) for label in labels]
    return splits.train.inputs[first], [splits.classes[label] for label in labels] if splits.classes else []


def shown_blocks(task: Task, psi: Tensor, images: Tensor, limit: int | None = 2) -> list[Block]:
    """Images ``[n, c, h, w]`` in [0, 1], and SAMPLES of each at the start and as learned; psi in words."""
    start = task.psi_space.initial()
    panels = [("at the start", start), ("as learned", psi)]
    panels = [("fixed", psi)] if torch.equal(start, psi) else panels
    blocks = [("training\nimages", images[:, None])]
    for name, values in panels:
        own = {k: v for k, v in task.physical(values).items() if k.partition(".")[0] in task.transforms}
        silent = [name for name in task.transforms if not any(key.startswith(f"{name}.") for key in own)]
        words = compact(own, limit) if limit else "; ".join([*in_words(own, limit=len(own)), *silent])
        blocks.append((f"{name}\n{words}", sample(task, values, images)))
    return blocks


def transforms_figure(blocks: Sequence[Block], names: Sequence[str] = ()) -> fig.Figure:
    """Blocks of the same images side by side, a row for each image; the names, if any, on their left."""
    from matplotlib.figure import Figure

    columns = [block.shape[1] for _, block in blocks]
    rows = len(blocks[0][1])
    figure = Figure(figsize=(0.82 * sum(columns) + 1.5, 0.82 * rows + 1.1), dpi=fig.DPI, layout="constrained")
    figure.suptitle("Training images, and how the network is shown them", fontsize=15)
    axes = figure.subplots(1, len(blocks), width_ratios=columns, squeeze=False)[0]
    for ax, (title, block) in zip(axes, blocks, strict=True):
        shown = sheet(block)
        ax.imshow(shown, interpolation="nearest")
        ax.set_title(title, fontsize=12)
        ax.set_axis_off()
    height = (len(shown) + 1) / rows
    for row, name in enumerate(names):
        style = {"fontsize": 12, "ha": "right", "va": "center", "parse_math": False}
        axes[0].text(-0.2 * height, (row + 0.5) * height - 1, fig.wrapped(name), **style)
    return figure


def sheet(images: Tensor) -> NDArray[np.float64]:
    """Images ``[n, s, c, h, w]`` in [0, 1], a row each, as one of RGBA ``[height, width, 4]``."""
    n, s, _, h, w = images.shape
    found = np.zeros((n, h + 1, s, w + 1, 4))
    found[:, :h, :, :w, :3] = images.float().clamp(0, 1).permute(0, 3, 1, 4, 2).expand(n, h, s, w, 3).numpy()
    found[:, :h, :, :w, 3] = 1.0
    return found.reshape(n * (h + 1), s * (w + 1), 4)[:-1, :-1]


def sample(task: Task, psi: Tensor, images: Tensor, samples: int = SAMPLES) -> Tensor:
    """Images ``[n, c, h, w]`` under the transforms with ``psi``: ``[n, samples, c, h, w]``."""
    with torch.no_grad():
        noise = Noise(NoiseKey(0, "pictures"), dtype=task.dtype)
        x = task.transformed(psi, images.repeat_interleave(samples, 0), noise)
    return x.view(len(images), samples, *x.shape[1:])
