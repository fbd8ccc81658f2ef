"""What people hand over to be trained, as a ``Task``."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedpart.task.task import Task


def as_task(given: Any) -> Task:
    """A task as it is; a network alone as ``Task(network, samples=1)``, which is a classification.

    Raises:
        ValueError: it is neither, or see :class:`.Task`.
    """
    if isinstance(given, Task):
        return given
    if isinstance(given, nn.Module):
        return Task(given, samples=1)
    kind = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
    raise ValueError(
        f"What is trained is a Task or an nn.Module, got {kind}; write Task(module), with transforms if "
        f"there are any."
    )
