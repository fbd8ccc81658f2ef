"""The bounds of a task's hyperparameters, as their kinds say them."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedpart.nn.hyperparameters.base import Bound, HyperModule
from fedpart.task.task import Task

_NONE = (-math.inf, math.inf)


def psi_bounds(task: Task) -> tuple[Tensor, Tensor]:
    """The smallest and the largest psi that a server keeps, ``[P]`` each; infinite where there is no bound.

    Where psi starts beyond a bound, that is the bound.
    """
    start = task.psi_space.initial()
    low, high = start.clone(), start.clone()
    found = zip(_bounds(task), *(torch.split(one, _sizes(task)) for one in (low, high)), strict=True)
    for (least, most), lows, highs in found:
        lows.copy_(torch.minimum(lows, _flat(least, lows)))
        highs.copy_(torch.maximum(highs, _flat(most, highs)))
    return low, high


def _sizes(task: Task) -> list[int]:
    return [entry.size for entry in task.psi_space.entries]


def _flat(bound: Bound, like: Tensor) -> Tensor:
    return torch.as_tensor(bound, dtype=like.dtype, device=like.device).flatten().expand(like.shape)


def _bounds(task: Task) -> Iterator[tuple[Bound, Bound]]:
    """Of each tensor of psi, in its order."""
    with task.likelihood_at(None) as likelihood:
        ends = nn.ModuleDict({"likelihood": likelihood})
    roots = {"module": task.module, "transforms": nn.ModuleDict(task.transforms), "ends": ends}
    for entry in task.psi_space.entries:
        part, _, inside = entry.name.partition(".")
        path, _, name = inside.rpartition(".")
        owner = roots[part].get_submodule(path)
        yield owner.bounds().get(name, _NONE) if isinstance(owner, HyperModule) else _NONE
