"""Result: what came out of a run."""

from __future__ import annotations

import warnings
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from fedpart.training.state import ModelState
from fedpart.trees import Tree

Report = TypeVar("Report")


def remarks_on(state: ModelState) -> list[str]:
    """What a person should know of the psi found, by :meth:`.HyperModule.remarks` of the transforms."""
    physical, found = state.task.physical(state.psi), []
    for name, transform in state.task.transforms.items():
        own = {key.removeprefix(f"{name}."): value for key, value in physical.items()}
        found += [f"{name}: {remark}" for remark in transform.remarks(own)]
    return found


class Result(Generic[Report]):
    """What a run has learned.

    Attributes:
        state: the final state: a :class:`.Federation` or :class:`.Training`.
        metrics: one report per round, or per evaluation of centralised training, of this call.

    Warns:
        RuntimeWarning: what a person should know of the psi found, see :func:`remarks_on`.
    """

    def __init__(self, state: ModelState, metrics: list[Report]) -> None:
        self.state, self.metrics = state, metrics
        for remark in remarks_on(state):
            warnings.warn(remark, RuntimeWarning, stacklevel=3)

    @property
    def psi(self) -> dict[str, float]:
        """The hyperparameters found, in units that a person reads."""
        return self.state.task.physical(self.state.psi)

    def module(self) -> nn.Module:
        """The trained network alone; see :meth:`ModelState.module`."""
        return self.state.module()

    def predict(self, x: Tree) -> Tensor:
        """Outputs ``[n, ...]`` of the full network for ``x [n, ...]``, S samples averaged, dropout off."""
        return torch.cat(list(self.state.predict(x)))
