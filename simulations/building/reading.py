"""From a run's folder to the network that it has trained: what ``fedpart.load`` finds by an entry point."""

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from fedpart import AdamSettings, Protocol, SeparateNetworks, Task
from fedpart.data import preprocessing_of
from fedpart.data.trained_on import counted
from fedpart.training.result import Loaded
from fedpart.training.state import ModelState
from fedpart.trees import Tree, form_of, leaves, map_leaves, of_form
from fedpart.updates.stages.personal import parted
from simulations.building.data import load_data
from simulations.building.task import build_task, load_saved
from simulations.config.load import Config, ConfigError, ExperimentConfig
from simulations.errors import as_written, one_sentence
from simulations.folders.run_directory import read_summary, saved_config


def read_run(folder: Path) -> Loaded:
    """See :func:`fedpart.load`."""
    config, summary = _finished(folder)
    built = config.model_copy(update={"device": "cpu", "psi_from": None})  # the psi found is in the folder
    with as_written(folder), one_sentence():
        known = summary.get("preprocessing")
        made = None if known is None else preprocessing_of(known)
        task = build_task(built, *seen_shape(config, summary), made)
        state = _whole(task, built)
        state.like = _seen(config, summary, 0)[1]
        load_saved(state, folder)
        stages = summary.get("stages")  # of centralised training
        # The noise of predictions is a function of it.
        state.completed = stages[-1]["iteration"] if stages else summary["rounds"]
    about = f"{config.method}, {counted(state.completed, config.clock.name)}, {config.data}"
    ways = {"test_accuracy": "accuracy {:.1%}", "test_nll": "loss {:.3f}"}
    scores = [way.format(summary[key]) for key, way in ways.items() if summary.get(key) is not None]
    about += f": {scores[0]} on test data" if scores else ""
    return Loaded(state, config.resolved(), summary.get("classes", ()), made, about)


def example_inputs(folder: Path, rows: int) -> Tree:
    """Inputs ``[rows, ...]`` as those of a finished run: random numbers in [0, 1], and 1 for whole ones."""
    with as_written(folder), one_sentence():
        return _seen(*_finished(folder), rows)[1]


def seen_shape(config: Config, summary: dict[str, Any]) -> tuple[int, Any]:
    """How many classes a finished run's data have, and the shape of an example, a tree as its inputs are."""
    classes, inputs = _seen(config, summary)
    return classes, map_leaves(lambda leaf: tuple(leaf.shape[1:]), inputs)


def described(inputs: Tree) -> dict[str, Any]:
    """Form, type and shape of an example: with these a network is made without the data."""
    named = dict(leaves(inputs, "inputs"))
    kinds = {k: [str(leaf.dtype).removeprefix("torch."), *leaf.shape[1:]] for k, leaf in named.items()}
    return {"form": form_of(inputs, "inputs"), "kinds": kinds}


def _finished(folder: Path) -> tuple[Config, dict[str, Any]]:
    config = saved_config(folder)
    if (summary := read_summary(folder)) is None:
        remedy = f"continue it with fedpart {config.clock.command} --resume {quote(str(folder))}"
        raise ConfigError(f"The run in {folder} is not finished; {remedy}.")
    return config, summary


def _seen(config: Config, summary: dict[str, Any], rows: int = 1) -> tuple[int, Tree]:
    """How many classes the data have, and made-up inputs like theirs."""
    if "inputs" in summary:
        classes, inputs = summary["num_classes"], summary["inputs"]
    else:  # a run from before summaries said so
        splits = load_data(config, download=False)
        classes, inputs = splits.num_classes, described(splits.train.inputs)
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, (kind, *shape) in inputs["kinds"].items():
        dtype = getattr(torch, kind)
        made[name] = torch.ones(rows, *shape, dtype=dtype)
        if dtype.is_floating_point:
            made[name].uniform_(generator=generator)
    return classes, of_form(inputs["form"], made)


def _whole(task: Task, config: Config) -> ModelState:
    """The full network in one partition: chunks would need the data, and no other network is saved."""
    protocol = None
    if isinstance(config, ExperimentConfig):
        protocol = Protocol(task, replace(config.settings(), keep_best=None))  # earlier runs ignored it
    task = protocol.task if protocol is not None else config.build_method().prepare(task)
    partition = SeparateNetworks(task.parameter_space(1))
    state = ModelState(task, partition, AdamSettings(), AdamSettings(), seed=config.seed)
    state.parted = "" if protocol is None else parted(protocol)
    return state
