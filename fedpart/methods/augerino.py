"""FedAvg + Augerino (Benton et al. 2020): widths grow under a regulariser on the training loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from fedpart.hyperparameters import AffineAugmentation
from fedpart.jobs import Job
from fedpart.methods.base import METHODS, Method
from fedpart.noise import Noise
from fedpart.task import Batch, Task

if TYPE_CHECKING:
    from fedpart.protocol import Protocol


@METHODS.register("augerino")
class Augerino(Method):
    """One partition; each client's loss minus ``weight * ||widths||_2`` trains the transforms' psi.

    Clients send the psi gradient along their training steps; the server averages it and steps Adam (open
    point 4). Other hyperparameters, such as dropout rates, stay at their initial values.

    Args:
        weight: lambda of the regulariser (0.01 in the published code).
        safe: switch the whole regulariser off, value and gradient, once any width reaches ``limit``; without
            it the objective is unbounded (App. E).
        limit: 10 in the published code.
        family: affine family: Augerino's own 6 widths take the place of every AffineAugmentation of the task;
            None keeps the task's transforms.
        initial: raw widths to start from, one number or six (before softplus).
    """

    def __init__(
        self,
        weight: float = 0.01,
        safe: bool = True,
        limit: float = 10.0,
        family: str | None = "augerino",
        initial: float | Sequence[float] | None = None,
    ) -> None:
        self.weight, self.safe, self.limit, self.family, self.initial = weight, safe, limit, family, initial

    def prepare(self, task: Task) -> Task:
        if self.family is None:
            return task
        own = {
            name: AffineAugmentation(self.family, self.initial, t.align_corners, t.padding)  # type: ignore[arg-type]
            if isinstance(t, AffineAugmentation)
            else t
            for name, t in task.transforms.items()
        }
        return task.replace(transforms=own)

    def proportions(self, chunks: Sequence[float]) -> tuple[float, ...]:
        return (1.0,)

    def trained_psi(self, task: Task) -> Sequence[str]:
        return task.transform_psi

    def plan(self, protocol: Protocol, client: int, round: int) -> list[Job]:
        return [Job(subnetwork=1, partition=1, psi=True)]

    def loss(
        self, task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
    ) -> Tensor:
        return task.loss(w, psi, batch, noise) + self.regulariser(task, psi)

    def regulariser(self, task: Task, psi: Tensor) -> Tensor:
        """``-weight * ||widths||_2``, zero with zero gradient once safe and any width >= limit; a scalar."""
        widths = task.widths(psi)
        active = 1.0 if not self.safe else (widths.detach() < self.limit).all().to(widths.dtype)
        return -self.weight * widths.norm() * active
