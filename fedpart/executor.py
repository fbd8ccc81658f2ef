"""Executor: runs a client's jobs at the server's values of one round. Every engine calls it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.jobs import Job
from fedpart.noise import Noise, NoiseKey
from fedpart.protocol import Protocol
from fedpart.rng import generator
from fedpart.settings import DECAY_POWERS
from fedpart.space import ParameterSpace
from fedpart.task import Batch
from fedpart.update import Update


class ClientError(RuntimeError):
    """A client could not compute its update; the message names the client and the cause."""

    @classmethod
    def of(cls, client: int, round: int, cause: Exception) -> ClientError:
        """The error of ``client`` in ``round`` whose cause is any exception."""
        reason = " ".join(str(cause).split())
        return cls(f"Client {client} failed in round {round}: {type(cause).__name__}: {reason}")


class _Point:
    """Weights at which gradients are taken.

    The network reads copies of the named tensors and not views into the flat vector: BLAS gives other bits
    for memory at odd offsets, and the parameters of a plain module lie at even ones.

    Attributes:
        tensors: the module's named tensors, leaves, norms folded.
    """

    def __init__(self, space: ParameterSpace, theta: Tensor) -> None:
        self._theta = theta.detach().requires_grad_()
        self._views = space.tensors(self._theta)
        self.tensors = {name: view.detach().clone().requires_grad_() for name, view in self._views.items()}

    def pull_back(self, gradients: Sequence[Tensor]) -> Tensor:
        """The flat gradient ``[size]``, in the module's own order, from those of ``tensors``."""
        (flat,) = torch.autograd.grad(list(self._views.values()), self._theta, gradients, retain_graph=True)
        return flat


class Executor:
    """Client-side computation (Eq. 25 and 26) for one process.

    Args:
        protocol: shared with the server.
    """

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.device = torch.device(protocol.settings.device)
        task, partition = protocol.task, protocol.partition
        trained = set(protocol.method.trained_psi(task))
        named = zip(task.psi_names, task.psi_space.entries, strict=True)
        mask = [torch.full((entry.size,), float(name in trained)) for name, entry in named]
        self._psi_mask = torch.cat([torch.zeros(0), *mask]).to(self.device, task.dtype)
        self._positions: dict[int, Tensor] = {}
        if partition.chunks > 1:  # a single partition is the whole vector
            every = range(1, partition.chunks + 1)
            self._positions = {k: partition.positions(k).to(self.device) for k in every}
        self._subnetworks: dict[int, tuple[Tensor, _Point]] = {}

    def begin(self, round: int, w: Tensor, psi: Tensor) -> None:
        """Take over the server's values: ``w [size]`` in partition order and ``psi [P]``."""
        self.round = round
        self.w = w.to(self.device)
        self.psi = psi.to(self.device, copy=True)  # in memory of our own, as the subnetworks are
        self._subnetworks.clear()

    def run(self, client: int, shard: Dataset, jobs: Sequence[Job]) -> Update:
        """Execute ``jobs``, in any order, on the client's shard.

        Raises:
            ClientError: the shard is empty, the loss is not finite, or the computation fails, for instance
                because labels lie outside the classes.
        """
        if len(shard) == 0:
            raise ClientError(f"Client {client} has no examples; give every client at least one.")
        shard = shard.to(self.device)
        update, losses = Update(examples=len(shard)), dict[Job, float]()
        for job in jobs:
            try:
                losses[job] = loss = self._run_job(update, client, shard, job)
            except IndexError as error:
                raise ClientError(
                    f"The data of client {client} do not fit the network ({error}); every label must be "
                    f"below its number of outputs, and every token below the size of its vocabulary."
                ) from error
            except Exception as error:
                raise ClientError.of(client, self.round, error) from error
            if not math.isfinite(loss):
                raise ClientError(
                    f"The loss of client {client} in round {self.round} is {loss} (subnetwork "
                    f"{job.subnetwork}); lower the local learning rate, or check the client's data."
                )
        if losses:  # of the largest subnetwork that was trained
            update.loss = losses[max(losses, key=lambda job: (job.partition is not None, job.subnetwork))]
        return update

    def _subnetwork(self, k: int) -> tuple[Tensor, _Point]:
        """w_s^(k) at the server's values, in the module's own order; built once per round."""
        if k not in self._subnetworks:
            partition = self.protocol.partition
            theta = partition.subnetwork(self.w, k)
            self._subnetworks[k] = theta, _Point(partition.space, theta)
        return self._subnetworks[k]

    def _run_job(self, update: Update, client: int, shard: Dataset, job: Job) -> float:
        protocol, space, j = self.protocol, self.protocol.partition.space, job.partition
        start, point = self._subnetwork(job.subnetwork)
        psi = self.psi.detach().requires_grad_(job.psi)
        w_j = None if j is None else self._take(start, j).clone()
        psi_sum, loss_sum, seen = torch.zeros_like(self.psi), 0.0, 0
        momentum: Tensor | None = None
        for step, batch in enumerate(self._batches(client, shard, job)):
            if j is not None and w_j is not None and step > 0:
                point = _Point(space, self._put(start, j, w_j))
            purpose = "psi" if j is None else f"train {j}"
            key = NoiseKey(protocol.settings.seed, purpose, (step, client, self.round))
            noise = Noise(key, self.device, protocol.task.dtype)
            w = point.tensors if j is not None else {name: t.detach() for name, t in point.tensors.items()}
            loss = protocol.method.loss(protocol.task, job, w, psi, batch, noise)
            if not loss.requires_grad:
                names = ", ".join(protocol.task.psi_names)
                raise ValueError(
                    f"the loss does not depend on any of {names}; use them in forward(), or remove them"
                )
            wanted = [tensor for tensor in (*w.values(), psi) if tensor.requires_grad]
            gradients = list(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))
            if job.psi:
                psi_sum += gradients.pop() * len(batch.inputs)
            if j is not None and w_j is not None:
                momentum = self._sgd_step(w_j, self._take(point.pull_back(gradients), j), j, momentum)
            loss_sum += loss.item() * len(batch.inputs)
            seen += len(batch.inputs)
        if j is not None and w_j is not None:
            update.deltas[j] = w_j.sub_(self._take(start, j))
        if job.psi:
            update.psi = psi_sum * self._psi_mask / seen
        return loss_sum / seen

    def _sgd_step(self, w_j: Tensor, gradient: Tensor, j: int, momentum: Tensor | None) -> Tensor | None:
        """One step of torch's SGD on ``w_j``, in place; returns the momentum buffer."""
        local = self.protocol.settings.local
        if local.weight_decay:
            share = sum(self.protocol.chunks[:j])
            decay = local.weight_decay / share ** DECAY_POWERS[local.decay_scaling]
            gradient = gradient.add(w_j, alpha=decay)
        if local.momentum:
            momentum = gradient.clone() if momentum is None else momentum.mul_(local.momentum).add_(gradient)
            gradient = momentum
        w_j.add_(gradient, alpha=-local.learning_rate)
        return momentum

    def _batches(self, client: int, shard: Dataset, job: Job) -> Iterator[Batch]:
        local, seed, n = self.protocol.settings.local, self.protocol.settings.seed, len(shard)
        psi_only = job.partition is None
        if psi_only and local.psi_batch != "shard" and local.psi_batch < n:
            drawn = generator(seed, "psi batch", client, self.round).permutation(n)[: local.psi_batch]
            shard, n = shard.subset(drawn), len(drawn)
        for epoch in range(1 if psi_only else local.epochs):
            order = torch.arange(n)
            if n > local.batch_size and not psi_only:
                rng = generator(seed, f"shuffle {job.partition}", epoch, client, self.round)
                order = torch.from_numpy(rng.permutation(n))
            for places in torch.split(order.to(self.device), local.batch_size):
                yield Batch(shard.inputs[places], shard.targets[places])

    def _take(self, own: Tensor, j: int) -> Tensor:
        """Elements of w_j from a vector in the module's own order."""
        return own.index_select(0, self._positions[j]) if self._positions else own

    def _put(self, own: Tensor, j: int, w_j: Tensor) -> Tensor:
        """A copy of ``own`` with the elements of w_j replaced."""
        return own.index_copy(0, self._positions[j], w_j) if self._positions else w_j
