"""What learned transforms do to images: a few, each beside samples under the initial and the final psi."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpart import Task
from fedpart.data import Splits
from fedpart.randomness.noise import Noise, NoiseKey
from simulations.building.data import load_data
from simulations.building.task import build_task, saved_psi
from simulations.folders.run_directory import saved_config
from simulations.pictures.figures import DPI, short
from simulations.terminal.progress import compact

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES, SAMPLES = 5, 6
_IMAGE, _GAP, _SPACE, _TOP = 0.75, 0.07, 0.25, 1.05  # inches: an image, between two, between blocks, titles
_STEP, _LETTER = _IMAGE + _GAP, 0.1  # from image to image, a letter of a name


def run_transforms_figure(folder: str | Path, *, download: bool = True) -> Figure | None:
    """Training images of a finished run under its transforms; None if it has no images, or none that change.

    The data are read again, as the run's configuration says.

    Args:
        folder: of the run.
        download: whether data that are not here may be fetched.
    """
    splits = load_data(saved_config(folder), download=download)
    task = run_task(folder, splits)
    return None if task is None else transforms_figure(task, saved_psi(folder, task), *examples(splits))


def run_task(folder: str | Path, splits: Splits) -> Task | None:
    """The task of a finished run; None if it has no images, or no transforms that change them."""
    config = saved_config(folder)
    shape = tuple(splits.train.inputs.shape[1:])
    if len(shape) != 3 or shape[0] not in (1, 3):
        return None
    task = config.build_method().prepare(build_task(config, splits.num_classes, shape))
    images, _ = examples(splits)
    shown = sample(task, saved_psi(folder, task), images, 1)[:, 0]
    return None if torch.equal(shown.to(images.dtype), images) else task


def examples(splits: Splits) -> tuple[Tensor, list[str]]:
    """A few training images ``[n, c, h, w]``, of different classes if there are any; their names, if any."""
    targets = splits.train.targets
    if targets.is_floating_point():
        return splits.train.inputs[:IMAGES], []
    labels = targets.unique()[:IMAGES]
    first = [int((targets == label).nonzero()[0]) for label in labels]
    return splits.train.inputs[first], [splits.classes[label] for label in labels] if splits.classes else []


def transforms_figure(task: Task, psi: Tensor, images: Tensor, names: Sequence[str] = ()) -> Figure:
    """Images ``[n, c, h, w]``, each in a row with samples of the task's transforms.

    Args:
        task: with transforms; its initial psi is where the run started.
        psi: ``[P]``, where it ended.
        images: channels 1 (grey) or 3, values in [0, 1].
        names: of the images, on their left; may be empty.
    """
    from matplotlib.figure import Figure

    blocks = [("image", images[:, None]), *shown_blocks(task, psi, images)]
    start = _SPACE + _LETTER * max((len(short(name)) for name in names), default=0)
    width = start + sum(_STEP * block.shape[1] + _SPACE for _, block in blocks)
    height = _STEP * len(images) + _TOP
    figure = Figure(figsize=(width, height), dpi=DPI)
    figure.suptitle("Training images, and how the network is shown them", fontsize=15, y=1 - 0.1 / height)
    for row, name in enumerate(names):
        middle = 1 - (_TOP + row * _STEP + _IMAGE / 2) / height
        place = (start - _SPACE / 2) / width
        figure.text(place, middle, short(name), fontsize=12, ha="right", va="center", parse_math=False)
    left = start
    for title, block in blocks:
        rows, columns = block.shape[:2]
        middle = (left + (columns * _STEP - _GAP) / 2) / width
        figure.text(middle, 1 - (_TOP - 0.1) / height, title, fontsize=12, ha="center", va="bottom")
        for row in range(rows):
            for column in range(columns):
                corner = left + column * _STEP, height - _TOP - (row + 1) * _STEP + _GAP
                ax = figure.add_axes((corner[0] / width, corner[1] / height, _IMAGE / width, _IMAGE / height))
                image = block[row, column].float().clamp(0, 1).permute(1, 2, 0)
                ax.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1)
                ax.set_xticks([])
                ax.set_yticks([])
        left += columns * _STEP + _SPACE
    return figure


def shown_blocks(task: Task, psi: Tensor, images: Tensor) -> list[tuple[str, Tensor]]:
    """Samples ``[n, SAMPLES, c, h, w]`` at the start and as learned, each with a title of two lines.

    One block if psi is where it was at the start.
    """
    start = task.psi_space.initial()
    changed = not torch.equal(start, psi)
    panels = [("at the start", start), ("as learned", psi)] if changed else [("fixed", psi)]
    blocks = []
    for name, values in panels:
        own = {k: v for k, v in task.physical(values).items() if k.partition(".")[0] in task.transforms}
        blocks.append((f"{name}\n{compact(own, limit=2)}", sample(task, values, images)))
    return blocks


def sample(task: Task, psi: Tensor, images: Tensor, samples: int = SAMPLES) -> Tensor:
    """Images ``[n, c, h, w]`` under the transforms with ``psi``: ``[n, samples, c, h, w]``."""
    with torch.no_grad():
        noise = Noise(NoiseKey(0, "pictures"), dtype=task.dtype)
        x = task.transformed(psi, images.repeat_interleave(samples, 0), noise)
    return x.view(len(images), samples, *x.shape[1:])
