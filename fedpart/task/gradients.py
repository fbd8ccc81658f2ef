"""Gradients of one job on one batch: Eq. 3 (parameters) and Eq. 4 (hyperparameters)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedpart.parameters.partition import Partition
from fedpart.parameters.space import ParameterSpace
from fedpart.randomness.noise import Noise
from fedpart.task.jobs import Job
from fedpart.task.task import Batch, Task
from fedpart.vectorised.stacked_noise import GivenNoise
from fedpart.vectorised.vmapped import vmapped

# What an IndexError in the network means, to people.
MISFIT = "every label must be below its number of outputs, and every token below the size of its vocabulary"


class Point:
    """Weights at which gradients are taken.

    The network reads copies of the named tensors and not views into the flat vector: BLAS gives other bits
    for memory at odd offsets, and the parameters of a plain module lie at even ones.

    Args:
        space: of the subnetwork.
        theta: ``[size]`` in the module's own order.

    Attributes:
        tensors: the module's named tensors, leaves, norms folded.
    """

    def __init__(self, space: ParameterSpace, theta: Tensor) -> None:
        self._space, self._theta = space, theta.detach()
        views = space.tensors(self._theta)
        self.tensors = {name: view.clone().requires_grad_() for name, view in views.items()}

    def pull_back(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Flat pieces, ``[size]`` together, in the module's own order, from gradients of ``tensors``."""
        return self._space.pull_back(self._theta, gradients)


class Objective(Protocol):
    """What a job minimises; ``Method.loss``."""

    def __call__(
        self, task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
    ) -> Tensor: ...


class Gradients(NamedTuple):
    """Result of :func:`gradients`.

    ``loss``: in nats; ``w``: flat pieces, one after the other the elements of w_j (or of the subnetwork: a
    piece may be there several times), or None without training;
    ``psi``: ``[P]``, or None.
    """

    loss: float
    w: list[Tensor] | None
    psi: Tensor | None


def gradients(
    task: Task,
    partition: Partition | None,
    objective: Objective,
    job: Job,
    point: Point,
    psi: Tensor,
    batch: Batch,
    noise: Noise | None,
) -> Gradients:
    """Loss of ``job`` on one batch, and its gradient with respect to w_j and psi, as the job asks.

    Args:
        task, objective: what is learned, and the loss.
        partition: where the elements of w_j are; None: the gradient of the whole subnetwork is wanted.
        job: which partition is trained, and whether psi's gradient is taken.
        point: subnetwork ``job.subnetwork``.
        psi: ``[P]``.
        batch, noise: see :class:`.Task`.

    Raises:
        ValueError: the loss depends on nothing that the job asks for.
    """
    psi = psi.detach().requires_grad_(job.psi)
    trains = job.partition is not None
    w = point.tensors if trains else {name: t.detach() for name, t in point.tensors.items()}
    loss = objective(task, job, w, psi, batch, noise)
    if not loss.requires_grad:
        names = ", ".join(task.psi_names)
        raise ValueError(f"the loss does not depend on any of {names}; use them in forward(), or remove them")
    wanted = [tensor for tensor in (*w.values(), psi) if tensor.requires_grad]
    found = list(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))
    of_psi = found.pop() if job.psi else None
    of_w = None
    if job.partition is not None:
        of_w = point.pull_back(found)
        of_w = of_w if partition is None else partition.select(of_w, job.partition, job.subnetwork)
    return Gradients(loss.item(), of_w, of_psi)


class StackedGradients(NamedTuple):
    """Result of :func:`stacked_gradients` for J networks.

    ``losses [J]``: in nats; ``theta [J, size]``, or None without training; ``psi [J, P]``, or None.
    """

    losses: Tensor
    theta: Tensor | None
    psi: Tensor | None


def stacked_gradients(
    task: Task,
    space: ParameterSpace,
    objective: Objective,
    job: Job,
    theta: Tensor,
    psi: Tensor,
    batch: Batch,
    draws: Sequence[Tensor],
) -> StackedGradients:
    """Losses of J networks, each on a batch of its own, and their gradients, as :func:`gradients` of each.

    The losses are one ``vmap``. The gradient of their sum holds every network's own, since no network's loss
    depends on another's weights.

    Args:
        task, objective: what is learned, and the loss.
        space: of the networks.
        job: what is asked for; of the networks' jobs any, if the objective does not tell them apart.
        theta: ``[J, size]`` in the module's own order; ``[size]``, one network for all, without training.
        psi: ``[P]`` for all networks, or ``[J, P]``, one for each.
        batch: ``[J, b, ...]`` each; weights where batches differ in size.
        draws: the noise of all networks, see :func:`.stacked_draws`.

    Raises:
        RuntimeError: the losses depend on nothing that the job asks for, or the network cannot be vmapped.
    """

    def loss(theta: Tensor, psi: Tensor, parts: tuple[Any, ...], draws: tuple[Tensor, ...]) -> Tensor:
        return objective(task, job, space.tensors(theta), psi, Batch(*parts), GivenNoise(draws))

    theta = theta.detach().requires_grad_(job.partition is not None)
    psi = psi.expand(len(batch.inputs), -1).clone().requires_grad_() if job.psi else psi
    own = (None if theta.ndim == 1 else 0, None if psi.ndim == 1 else 0)
    of_batch = tuple(None if part is None else 0 for part in batch)
    losses = vmapped(loss, (*own, of_batch, 0))(theta, psi, tuple(batch), tuple(draws))
    wanted = [tensor for tensor in (theta, psi) if tensor.requires_grad]
    found = list(torch.autograd.grad(losses.sum(), wanted, allow_unused=True, materialize_grads=True))
    of_psi = found.pop() if job.psi else None
    return StackedGradients(losses.detach(), found.pop() if found else None, of_psi)


def psi_mask(task: Task, trained: Sequence[str]) -> Tensor:
    """1 for the numbers of psi whose names are in ``trained``, 0 for the frozen ones; ``[P]``."""
    named = zip(task.psi_names, task.psi_space.entries, strict=True)
    mask = [torch.full((entry.size,), float(name in trained)) for name, entry in named]
    return torch.cat([torch.zeros(0), *mask]).to(task.dtype)
