"""precision: auto: the precision and memory format in which this machine computes a step fastest."""

import itertools
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from fedpart import Batch, SeparateNetworks, Task
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.task.gradients import Job, Point, gradients
from simulations.building.data import load_data
from simulations.building.task import build_task, torch_threads
from simulations.config.load import AnyConfig, Config, ExperimentConfig
from simulations.errors import one_sentence
from simulations.folders.cell import Cell
from simulations.folders.run_directory import CONFIG, holds_run, saved_config
from simulations.results.terminal.progress import Progress

REPEATS = 5
GAIN = 0.9  # of the seconds of fp32: what is not faster than that is not worth its digits


class Choice(NamedTuple):
    """A way to compute, and how long a step takes it."""

    precision: str
    channels_last: bool
    seconds: float

    def __str__(self) -> str:
        form = ", channels last" if self.channels_last else ""
        return f"{self.precision}{form}: {1000 * self.seconds:.1f} ms"


def choose_precision(config: AnyConfig, folder: str | Path, progress: Progress | None = None) -> AnyConfig:
    """``config`` with a choice in place of ``precision: auto``: that of runs in ``folder``, if any."""
    if config.precision != "auto":
        return config
    for file in sorted(Path(folder).glob(f"**/{CONFIG}")):
        earlier = saved_config(file.parent)
        return _with(config, earlier)
    return _with(config, _fastest(config, progress))


def choose_together(cells: Iterable[Cell], progress: Progress | None = None) -> list[Cell]:
    """A table's cells with one choice in place of every ``precision: auto``; runs keep what they have."""
    cells = list(cells)
    auto = [cell.folder for cell in cells if cell.config.precision == "auto"]
    there = {folder: saved_config(folder) for folder in auto if holds_run(folder)}
    choice: Choice | Config | None = next(iter(there.values()), None)
    for place, cell in enumerate(cells):
        if cell.folder in auto:
            choice = choice or _fastest(cell.config, progress)
            cells[place] = replace(cell, config=_with(cell.config, there.get(cell.folder, choice)))
    return cells


def _fastest(config: Config, progress: Progress | None) -> Choice:
    with one_sentence():
        measured = measure(config)
    if progress is not None:
        progress.note(f"A step takes, in {'; '.join(map(str, measured))}. The first is used.")
    return measured[0]


def measure(config: Config) -> list[Choice]:
    """Seconds of a training step of ``config`` in every way that it allows, the best first."""
    formats = [False, True] if _may_be_channels_last(config) else [False]
    splits = load_data(config)
    rows = config.local.batch_size if isinstance(config, ExperimentConfig) else config.batch_size
    if isinstance(config, ExperimentConfig):
        rows = min(rows, max(1, len(splits.train) // config.clients))
    batch = Batch(*splits.train.batch(slice(rows))).to(config.device)
    shape = splits.train.input_shape
    found = []
    with torch_threads(config.threads):
        for precision, channels_last in itertools.product(("fp32", "bf16"), formats):
            way = _with(config, Choice(precision, channels_last, 0.0))
            task = way.build_method().prepare(build_task(way, splits.num_classes, shape))
            found.append(Choice(precision, channels_last, _seconds(task, batch, config.device)))
    exact = found[: len(formats)]  # fp32, which others have to beat clearly
    return sorted(found, key=lambda choice: choice.seconds * (1 if choice in exact else 1 / GAIN))


def _seconds(task: Task, batch: Batch, device: str) -> float:
    """Of a step of the full network: its loss and gradient, the fastest of some."""
    partition = SeparateNetworks(task.parameter_space(1))
    point = Point(partition.space, partition.initial().to(device))
    psi, times = task.psi_space.initial().to(device), []
    for repeat in range(1 + REPEATS):
        noise = Noise(NoiseKey(0, "fast path", (repeat,)), device, task.dtype)
        start = time.perf_counter()
        gradients(task, lambda task, _, *rest: task.loss(*rest), Job(1, 1), point, psi, batch, noise)
        if psi.device.type != "cpu":
            torch.accelerator.synchronize(psi.device)  # it computes while this thread goes on
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _may_be_channels_last(config: Config) -> bool:
    execution = getattr(config, "execution", "loop")
    return execution != "grouped" and (execution != "auto" or config.device == "cpu")


def _with(config: AnyConfig, choice: Choice | Config) -> AnyConfig:
    channels_last = choice.channels_last and _may_be_channels_last(config)
    changed = {"precision": choice.precision, "channels_last": channels_last}
    return type(config).from_dict(config.resolved() | changed)
