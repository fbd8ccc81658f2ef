"""A task whose network has another size, for clients with devices of different sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpart.task.task import Task


def of_size(task: Task, options: Mapping[str, Any]) -> Task:
    """``task`` with the network that its ``sizes`` builds; hyperparameters begin as in ``task``.

    Args:
        task: of the network in its own size.
        options: for ``sizes``.

    Raises:
        ValueError: there is no ``sizes``, or it does not take them; or see :class:`.Task`.
    """
    if (build := task.arguments["sizes"]) is None:
        raise ValueError(
            "The task's network has one size; give Task(..., sizes=build), a function that builds it with "
            "the model_options of an architecture."
        )
    try:
        module = build(**options)
    except TypeError as error:
        given = dict(options)
        raise ValueError(f"The network cannot be built with the model_options {given} ({error}).") from error
    sized = Task(module, **task.arguments)
    own, there = ([(entry.name, entry.shape) for entry in one.psi_space.entries] for one in (sized, task))
    if own != there:
        raise ValueError(
            f"The network with the model_options {dict(options)} has other hyperparameters than the task's; "
            f"give all the same, by name and shape."
        )
    return sized.with_psi(task.psi_space.initial())
