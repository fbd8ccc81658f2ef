"""Executor: runs a client's jobs at the server's values of one round. Every engine calls it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.engines.batches import count_batches, count_held_out, divided, local_batches
from fedpart.federated.protocol import Protocol
from fedpart.kernels import keep_freed_memory
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.task.gradients import MISFIT, Point, gradients
from fedpart.task.held_out import score
from fedpart.task.jobs import Job, reported
from fedpart.task.task import Batch
from fedpart.training.optimisers import LocalSGD, SGDSettings, weight_decays
from fedpart.updates.refusal import Refusal
from fedpart.updates.update import Update


class ClientError(RuntimeError):
    """A client could not compute its update, or it was refused; the message names the client and the cause.

    Attributes:
        category: see :class:`.Refusal`; ``client_error`` if the client failed, ``no_answer``
            if it did not answer.
    """

    category = "client_error"

    @classmethod
    def of(cls, client: int, round: int, cause: Exception) -> ClientError:
        """The error of ``client`` in ``round`` whose cause is any exception."""
        reason = " ".join(str(cause).split())
        return cls(f"Client {client} failed in round {round}: {type(cause).__name__}: {reason}")

    @classmethod
    def refused(cls, client: int, round: int, refusal: Refusal) -> ClientError:
        """The error of ``client`` whose update in ``round`` was refused."""
        error = cls(f"The update of client {client} in round {round} was refused: {refusal}.")
        error.category = refusal.category
        return error


class Executor:
    """Client-side computation (Eq. 25 and 26) for one process.

    Args:
        protocol: shared with the server.

    Attributes:
        psi_mask: ``[P]``, 1 where psi is learned.
        decays: weight decay of each partition.
    """

    def __init__(self, protocol: Protocol) -> None:
        keep_freed_memory()
        self.protocol = protocol
        self.device = torch.device(protocol.settings.device)
        local = protocol.settings.local
        self.psi_mask = protocol.psi_mask.to(self.device)
        self._sgd = SGDSettings(local.learning_rate, local.momentum)
        self.decays = weight_decays(local.weight_decay, protocol.chunks, local.decay_scaling)
        self._subnetworks: dict[int, tuple[Tensor, Point]] = {}

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
        update, trained = self._execute(client, shard, jobs)
        update.deltas = {j: sgd.change() for j, sgd in trained.items()}
        self.protocol.clip(update)
        return update

    def add(self, client: int, shard: Dataset, jobs: Sequence[Job], total: Update | None) -> Update:
        """Execute ``jobs`` and add the weighted update to a cohort's sum, in place and without making it.

        The same bits as :meth:`run`, ``weigh`` and ``add`` without clipping, with fewer passes over memory.
        Whether the values are finite is not looked at.

        Args:
            client, shard, jobs: see :meth:`run`.
            total: the sum so far; None: there is none. After an error it is of no more use.

        Raises:
            ClientError: see :meth:`run`.
        """
        update, trained = self._execute(client, shard, jobs)
        weight = self.protocol.client_weight(update.examples)
        update.weigh(weight)
        total = update if total is None else total.add(update)
        for j, sgd in trained.items():
            total.deltas[j] = sgd.change(total.deltas.get(j), weight)
            total.weights[j] = total.weights.get(j, 0.0) + weight
        return total

    def _execute(
        self, client: int, shard: Dataset, jobs: Sequence[Job]
    ) -> tuple[Update, dict[int, LocalSGD]]:
        """The update without its deltas, and the trained partitions."""
        if len(shard) == 0:
            raise ClientError(f"Client {client} has no examples; give every client at least one.")
        shard = shard.to(self.device)
        examples = len(shard) - count_held_out(self.protocol.method.held_out, len(shard))
        update, losses, trained = Update(examples=examples), dict[Job, float](), dict[int, LocalSGD]()
        for job in jobs:
            try:
                losses[job] = loss = self._run_job(update, trained, client, shard, job)
            except IndexError as error:
                raise ClientError(
                    f"The data of client {client} do not fit the network ({error}); {MISFIT}."
                ) from error
            except Exception as error:
                raise ClientError.of(client, self.round, error) from error
            if not math.isfinite(loss):
                raise ClientError(
                    f"The loss of client {client} in round {self.round} is {loss} (subnetwork "
                    f"{job.subnetwork}); {self.protocol.method.remedy}."
                )
        if losses:
            update.loss = losses[reported(losses)]
        return update, trained

    def subnetwork(self, k: int) -> tuple[Tensor, Point]:
        """w_s^(k) at the server's values, in the module's own order; built once per round."""
        if k not in self._subnetworks:
            partition = self.protocol.partition
            theta = partition.subnetwork(self.w, k)
            self._subnetworks[k] = theta, Point(partition.space_of(k), theta)
        return self._subnetworks[k]

    def _run_job(
        self, update: Update, trained: dict[int, LocalSGD], client: int, shard: Dataset, job: Job
    ) -> float:
        protocol, j, k = self.protocol, job.partition, job.subnetwork
        task, partition, method = protocol.task, protocol.partition, protocol.method
        start, point = self.subnetwork(k)
        psi, asked = method.local_psi(protocol, self.psi, client, self.round), differentiated(protocol, job)
        if j is not None:
            origin, decay = partition.take(start, j, k), self.decays[j - 1]
            steps = count_batches(protocol, len(shard), job)
            trained[j] = LocalSGD(origin, self._sgd, decay, steps, final=asked != job)
        psi_sum, loss_sum, seen = torch.zeros_like(self.psi), 0.0, 0
        for step, (batch, noise) in enumerate(self.batches(client, shard, job)):
            if j is not None and step > 0:
                point = Point(partition.space_of(k), partition.put(start, j, k, trained[j].values))
            found = gradients(task, partition, method.loss, asked, point, psi, batch, noise)
            if found.psi is not None:
                psi_sum += found.psi * len(batch.inputs)
            if j is not None and found.w is not None:
                trained[j].step(found.w)
            loss_sum += found.loss * len(batch.inputs)
            seen += len(batch.inputs)
        if asked.psi:
            update.psi = psi_sum * self.psi_mask / seen
        elif job.psi:
            after = start if j is None else partition.put(start, j, k, trained[j].values)
            update.psi = self.feedback(client, shard, job, after)
        return loss_sum / seen

    def feedback(self, client: int, shard: Dataset, job: Job, after: Tensor) -> Tensor:
        """What takes the place of psi's gradient where examples are held out: see :meth:`Method.feedback`.

        Args:
            client, shard, job: as for :meth:`run`.
            after: ``[n]`` in the module's own order, the job's subnetwork as the client has trained it.

        Returns:
            ``[P]``, per example learned from, for the sum will be weighted by these.
        """
        protocol, (_, point) = self.protocol, self.subnetwork(job.subnetwork)
        learned, held = divided(protocol, client, len(shard))
        psi = protocol.method.local_psi(protocol, self.psi, client, self.round)
        batches = torch.split(held, protocol.settings.local.batch_size) if len(held) else ()
        before, now = (
            score(protocol.task, one.tensors, psi, self._noisy(client, shard, "held out", batches))
            for one in (point, Point(protocol.partition.space_of(job.subnetwork), after))
        )
        return protocol.method.feedback(protocol, self.psi, client, self.round, before, now) / len(learned)

    def batches(self, client: int, shard: Dataset, job: Job) -> Iterator[tuple[Batch, Noise]]:
        """What the job visits, batch by batch, each with its noise."""
        purpose = "psi" if job.partition is None else f"train {job.partition}"
        places = local_batches(self.protocol, client, self.round, len(shard), job)
        return self._noisy(client, shard, purpose, places)

    def _noisy(
        self, client: int, shard: Dataset, purpose: str, batches: Sequence[Tensor]
    ) -> Iterator[tuple[Batch, Noise]]:
        """The examples at the places of each batch, each batch with its noise."""
        protocol = self.protocol
        for step, places in enumerate(batches):
            key = NoiseKey(protocol.settings.seed, purpose, (step, client, self.round))
            here = places.to(self.device)
            yield (
                Batch(shard.inputs[here], shard.targets[here]),
                Noise(key, self.device, protocol.task.dtype),
            )


def differentiated(protocol: Protocol, job: Job) -> Job:
    """The job without the gradient of psi where the method's feedback takes its place."""
    return replace(job, psi=False) if protocol.method.held_out else job
