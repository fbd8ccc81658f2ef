"""Plain networks beside a selection's runs, scored by a post-hoc diagonal Laplace approximation."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from fedpart import Dataset, Task
from fedpart.laplace import diagonal_laplace
from simulations.cells import Cell
from simulations.config import ConfigError, TrainingConfig
from simulations.experiment import TrainingExperiment, build
from simulations.metrics import finite
from simulations.run_directory import STATE

SCORE = "laplace.json"


def require_laplace() -> None:
    """Refuse, before anything is run, what could not be scored.

    Raises:
        ConfigError: laplace-torch is not installed.
    """
    if importlib.util.find_spec("laplace") is None:
        raise ConfigError(
            "select.laplace needs laplace-torch: pip install fedpart[laplace], or set select.laplace: false."
        )


def laplace_twin(cell: Cell, out: Path) -> Cell:
    """A cell's plain network: the same model, data, seeds and optimiser, one partition on all data."""
    config = cell.config.resolved() | {
        "method": "none",
        "method_options": {"none": {"augment": True}},
        "keep_best": False,
    }
    folder = out / "laplace" / cell.folder.relative_to(out)
    return Cell(f"{cell.name}, plain", TrainingConfig.from_dict(config), folder)


def laplace_score(cell: Cell) -> float:
    """Log marginal likelihood (nats) of a finished twin's network; kept in its folder once it is known."""
    file = cell.folder / SCORE
    if not file.exists():
        experiment = build(cell.config)
        inputs = _transformed(experiment.task, experiment.train)
        score = diagonal_laplace(_network(cell, experiment), inputs, _precision(cell.config, len(inputs)))
        file.write_text(json.dumps(finite(score._asdict()), indent=2) + "\n", encoding="utf-8")
    return float(json.loads(file.read_text(encoding="utf-8"))["log_marginal_likelihood"])


def _network(cell: Cell, experiment: TrainingExperiment) -> nn.Module:
    """The trained network, without the input transforms."""
    saved = safetensors.torch.load_file(cell.folder / STATE)
    module = copy.deepcopy(experiment.task.module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(saved[f"w/{name}"] if f"w/{name}" in saved else saved[f"psi/{name}"])
    return module


def _transformed(task: Task, dataset: Dataset) -> Dataset:
    """The examples as the network sees them.

    Raises:
        ConfigError: it sees others each time.
    """

    def once() -> torch.Tensor:
        x = dataset.inputs.to(task.dtype)
        for transform in task.transforms.values():
            x = transform(x)
        return x

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        first, second = once(), once()
    if not torch.equal(first, second):
        raise ConfigError(
            "A Laplace approximation needs inputs that are the same each time, but they are transformed at "
            "random; set select.laplace: false, or leave out learned masks and augmentations."
        )
    return Dataset(first, dataset.targets)


def _precision(config: TrainingConfig, examples: int) -> float | str:
    """The prior that the weight decay stands for; the best one where it stands for none."""
    decay = config.optimiser.weight_decay
    return decay * examples if decay and config.optimiser.name != "adamw" else "optimised"
