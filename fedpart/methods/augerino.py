"""Augerino (Benton et al. 2020), federated or not: widths grow under a regulariser on the training loss."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from fedpart.methods.base import METHODS, CentralMethod, ClientView, FederatedMethod, Schedule
from fedpart.nn.hyperparameters import AffineAugmentation, HyperModule
from fedpart.nn.hyperparameters.affine import Family
from fedpart.randomness.noise import Noise
from fedpart.task.gradients import Job, Step
from fedpart.task.task import Batch, Task

_DIVERGED = 5.0  # limits: a scale width of 50 zooms by up to e^25, where nothing is left of an image


@METHODS.register("augerino")
class Augerino(FederatedMethod, CentralMethod):
    """One partition; the training loss minus ``weight * ||widths||_2`` trains w and the transforms' psi.

    Federated, the server averages the clients' psi gradients and steps Adam; the paper does not say how.
    Centralised, every iteration steps both on one batch. Other hyperparameters, such as dropout rates, stay
    at their initial values.

    Args:
        weight: lambda of the regulariser (0.01 in the published code).
        safe: switch the whole regulariser off, value and gradient, once any width reaches ``limit``; without
            it the objective is unbounded (App. E).
        limit: 10 in the published code.
        family: affine family: Augerino's own 6 widths take the place of every AffineAugmentation of another
            family; None keeps the task's transforms.
        initial: raw widths to start from, one number or six (before softplus); None: the family's default, or
            where the task's own transform starts if it is of this family already.
        psi_gradient: federated, where a client takes it: ``training``: the mean along its training steps,
            which costs nothing more; ``server``: at the server's weights, as partitioned networks do.

    Raises:
        ValueError: no transform of the task has widths, a weight or limit below 0, or an unknown
            ``psi_gradient``.
    """

    def __init__(
        self, weight: float = 0.01, safe: bool = True, limit: float = 10.0,
        family: Family | None = "augerino", initial: float | Sequence[float] | None = None,
        psi_gradient: Literal["training", "server"] = "training",
    ) -> None:  # fmt: skip
        for name, value in (("weight", weight), ("limit", limit)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ValueError(f"Augerino's {name} is a number >= 0, got {value!r}.")
        if psi_gradient not in ("training", "server"):
            raise ValueError(f"Augerino's psi_gradient is training or server, got {psi_gradient!r}.")
        self.weight, self.safe, self.limit, self.family, self.initial = weight, safe, limit, family, initial
        self.psi_gradient = psi_gradient

    @property
    def remedy(self) -> str:
        if self.safe:
            return super().remedy
        return "Augerino's objective is unbounded without its safe variant: use it (safe: true)"

    def prepare(self, task: Task) -> Task:
        task = task.replace(transforms={name: self._own(t) for name, t in task.transforms.items()})
        task.widths(task.psi_space.initial())  # refuses here, not in a client
        return task

    def _own(self, transform: HyperModule) -> HyperModule:
        if self.family is None or not isinstance(transform, AffineAugmentation):
            return transform
        if transform.family == self.family and self.initial is None:
            return transform
        how = transform.align_corners, transform.padding, transform.wrap
        augmentation = AffineAugmentation(self.family, self.initial, *how)
        return augmentation if transform.part is None else augmentation.on(transform.part)

    def proportions(self, chunks: Sequence[float]) -> tuple[float, ...]:
        return (1.0,)

    def trained_psi(self, task: Task) -> Sequence[str]:
        return task.transform_psi

    def plan(self, client: ClientView) -> list[Job]:
        if self.psi_gradient == "server":
            return [Job(subnetwork=1, partition=1), Job(subnetwork=1, psi=True)]
        return [Job(subnetwork=1, partition=1, psi=True)]

    def steps(self, schedule: Schedule, iteration: int, rng: np.random.Generator) -> list[Step]:
        return [Step(Job(subnetwork=1, partition=1, psi=True), 1, 1)]

    def watch(self, task: Task, psi: Tensor) -> None:
        largest = task.widths(psi.detach()).max().item()
        if not self.safe and not largest < _DIVERGED * self.limit:
            raise ValueError(
                f"Augerino without its safe variant has diverged, as its objective is unbounded (the largest "
                f"width is {largest:.3g}); use the safe one (safe: true), or a smaller weight"
            )

    def loss(
        self, task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
    ) -> Tensor:
        return task.loss(w, psi, batch, noise) + self.regulariser(task, psi)

    def regulariser(self, task: Task, psi: Tensor) -> Tensor:
        """``-weight * ||widths||_2``, zero with zero gradient once safe and any width >= limit; a scalar."""
        widths = task.widths(psi)
        term: Tensor = -self.weight * widths.norm()
        if not self.safe:
            return term
        return term * (widths.detach() < self.limit).all().to(widths.dtype)
