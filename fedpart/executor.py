"""Executor: runs a client's jobs at the server's values of one round. Every engine calls it; none computes itself."""

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
from fedpart.task import Batch
from fedpart.update import Update


class ClientError(RuntimeError):
    """A client could not compute its update; the message names the client and the cause."""


class Executor:
    """Client-side computation (Eq. 25 and 26) for one process.

    Args:
        protocol: shared with the server.
        device: where to compute; defaults to the protocol's.
    """

    def __init__(self, protocol: Protocol, device: str | None = None) -> None:
        self.protocol = protocol
        self.device = torch.device(device or protocol.settings.device)
        task, partition = protocol.task, protocol.partition
        trained = set(protocol.method.trained_psi(task))
        mask = [torch.full((e.size,), float(name in trained)) for name, e in zip(
            task.psi_names, task.psi_space.entries, strict=True)]  # fmt: skip
        self._psi_mask = torch.cat([torch.zeros(0), *mask]).to(self.device, task.dtype)
        self._positions = {
            k: partition.positions(k).to(self.device) for k in range(1, partition.chunks + 1) if partition.chunks > 1
        }
        self._subnetworks: dict[int, Tensor] = {}

    def begin(self, round: int, w: Tensor, psi: Tensor) -> None:
        """Take over the server's values: ``w [size]`` in partition order and ``psi [P]``."""
        self.round = round
        self.w = w.to(self.device)
        self.psi = psi.to(self.device)
        self._subnetworks.clear()

    def run(self, client: int, shard: Dataset, jobs: Sequence[Job]) -> Update:
        """Execute ``jobs`` on the client's shard.

        Raises:
            ClientError: the loss is not finite, the shard is empty, or its labels do not fit the network.
        """
        if len(shard) == 0:
            raise ClientError(f"Client {client} has no examples; give every client at least one.")
        shard = shard.to(self.device)
        update = Update(examples=len(shard))
        for job in jobs:
            loss = self._run_job(update, client, shard, job)
            if not math.isfinite(loss):
                raise ClientError(
                    f"The loss of client {client} in round {self.round} is {loss} (subnetwork {job.subnetwork}); "
                    f"lower the local learning rate, or check the client's data."
                )
            if job.partition is not None:  # jobs come in ascending order: the largest subnetwork's loss stays
                update.loss = loss
        return update

    def subnetwork(self, k: int) -> Tensor:
        """w_s^(k) at the server's values, in the module's own order; built once per round."""
        if k not in self._subnetworks:
            self._subnetworks[k] = self.protocol.partition.subnetwork(self.w, k)
        return self._subnetworks[k]

    def _run_job(self, update: Update, client: int, shard: Dataset, job: Job) -> float:
        protocol, local = self.protocol, self.protocol.settings.local
        start = self.subnetwork(job.subnetwork)
        theta = start.detach().requires_grad_(job.partition is not None)
        psi = self.psi.detach().requires_grad_(job.psi)
        w_j = self._take(start, job.partition).clone() if job.partition is not None else None
        psi_sum, loss_sum, seen = torch.zeros_like(self.psi), 0.0, 0
        purpose = "psi" if job.partition is None else f"train {job.partition}"
        for step, batch in enumerate(self._batches(client, shard, job)):
            if w_j is not None and step > 0:
                theta = self._put(start, job.partition, w_j).requires_grad_()
            key = NoiseKey(protocol.settings.seed, purpose, (step, client, self.round))
            noise = Noise(key, self.device, protocol.task.dtype)
            w = protocol.partition.space.tensors(theta)
            loss = protocol.method.loss(protocol.task, job, w, psi, batch, noise)
            wanted = [tensor for tensor in (theta, psi) if tensor.requires_grad]
            gradients = list(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))
            if job.psi:
                psi_sum += gradients.pop() * len(batch.inputs)
            if w_j is not None:
                w_j.add_(self._take(gradients.pop(), job.partition), alpha=-local.learning_rate)
            loss_sum += loss.item() * len(batch.inputs)
            seen += len(batch.inputs)
        if w_j is not None and job.partition is not None:
            update.deltas[job.partition] = w_j - self._take(start, job.partition)
        if job.psi:
            update.psi = psi_sum * self._psi_mask / seen
        return loss_sum / seen

    def _batches(self, client: int, shard: Dataset, job: Job) -> Iterator[Batch]:
        local, n = self.protocol.settings.local, len(shard)
        if job.partition is None:
            epochs, size = 1, local.batch_size
            if local.psi_batch != "shard" and local.psi_batch < n:
                rng = generator(self.protocol.settings.seed, "psi batch", client, self.round)
                shard = shard.subset(rng.permutation(n)[: local.psi_batch])
                n = len(shard)
        else:
            epochs, size = local.epochs, local.batch_size
        for epoch in range(epochs):
            if n <= size:
                yield Batch(shard.inputs, shard.targets)
                continue
            order = torch.arange(n)
            if job.partition is not None:
                rng = generator(self.protocol.settings.seed, f"shuffle {job.partition}", epoch, client, self.round)
                order = torch.from_numpy(rng.permutation(n))
            for places in order.to(self.device).split(size):
                yield Batch(shard.inputs[places], shard.targets[places])

    def _take(self, own: Tensor, j: int | None) -> Tensor:
        """Elements of w_j from a vector in the module's own order."""
        return own if j is None or not self._positions else own.index_select(0, self._positions[j])

    def _put(self, own: Tensor, j: int | None, w_j: Tensor) -> Tensor:
        """A copy of ``own`` with the elements of w_j replaced."""
        return w_j.clone() if j is None or not self._positions else own.index_copy(0, self._positions[j], w_j)
