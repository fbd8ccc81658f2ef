"""A task whose network has another size, for clients with devices of different sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fedpart.partition.inspection import stacked_parameters
from fedpart.partition.sharing import Sharing
from fedpart.task.model import frozen_of
from fedpart.task.task import Task


def of_size(task: Task, options: Mapping[str, Any], seed: int = 0) -> Task:
    """``task`` with the network that its ``sizes`` builds of ``options``; what is not trained there is the
    task's own. The seed is torch's meanwhile: clients elsewhere build the same one."""
    if (build := task.arguments["sizes"]) is None:
        fault = "The task's network has one size; give Task(..., sizes=build), a function that builds it with"
        raise ValueError(f"{fault} the model_options of an architecture.")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = build(**options)
    except TypeError as error:
        named = dict(options)
        raise ValueError(f"The network cannot be built with the model_options {named} ({error}).") from error
    sized = Task(module, **task.arguments)
    _take_constants(sized.module, task.module)
    new, old = ([(entry.name, entry.shape) for entry in of.psi_space.entries] for of in (sized, task))
    if new != old:
        fault = f"The network with the model_options {dict(options)} has other hyperparameters than the"
        raise ValueError(f"{fault} task's; give all the same, by name and shape.")
    return sized.with_psi(task.psi_space.initial())


def composed(tasks: Sequence[Task], sharing: Sharing, seed: int) -> list[Task]:
    """The tasks, of networks of several sizes, with networks whose weights are composed from what they
    share."""
    tasks = [part.replace() for part in tasks]  # which switches on what an evaluation has switched off
    modules, built = [part.module for part in tasks], []
    stacked = {name for part in tasks for name in (*part.stacked, *stacked_parameters(part.module))}
    plain = stacked.union(*(part.psi_names for part in tasks))
    for task, network in zip(tasks, sharing.compose(modules, seed, plain), strict=True):
        weights = {name for name, _ in task.module.named_parameters()}
        psi = [f"network.{name}" for name in task.psi_names if name in weights]
        folds = {f"network.{name}": fold for name, fold in task.stacked.items()}
        new = {"hyperparameters": psi, "stacked": folds, "learn_dropout": False}
        built.append(Task(network, **{**task.arguments, **new}).with_psi(task.psi_space.initial()))
    return built


def _take_constants(small: nn.Module, large: nn.Module) -> None:
    """Set frozen parameters and buffers to the leading corners of those of the large network, in place."""
    constants = {**frozen_of(large), **dict(large.named_buffers())}
    with torch.no_grad():
        for name, tensor in {**frozen_of(small), **dict(small.named_buffers())}.items():
            corner = constants[name][tuple(map(slice, tensor.shape))] if name in constants else None
            if corner is None or corner.shape != tensor.shape:
                raise ValueError(
                    f"{name!r}, which is not trained, has the shape {list(tensor.shape)} in a network of "
                    f"another size, and is no part of the task's; give the task's network all of it."
                )
            tensor.copy_(corner)
