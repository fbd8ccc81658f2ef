"""Executor: what a client computes, from the server's values to its update. Every engine calls it."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedpart.data.cells import check_examples
from fedpart.data.dataset import Dataset
from fedpart.engines.batches import (
    count_batches,
    count_learned,
    differentiated,
    learned_targets,
    local_batches,
    noisy_batches,
)
from fedpart.engines.feedback import feedback
from fedpart.federated.cohorts import Answer
from fedpart.federated.protocol import Protocol
from fedpart.kernels import keep_freed_memory
from fedpart.methods.base import ClientView
from fedpart.partition.partition import Partition
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.task.gradients import MISFIT, Gradients, Job, Objective, Point, gradients, reported
from fedpart.task.task import Batch, Task
from fedpart.training.local import LocalSettings, LocalSGD
from fedpart.updates.errors import ClientError, Refusal
from fedpart.updates.round import Round
from fedpart.updates.update import Update


class Checked:
    """Clients' data whose targets have been looked at: once for each client and use, in this process.

    Args:
        task: whose likelihood looks.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._seen: set[tuple[int, str]] = set()

    def __call__(self, client: int, data: Dataset, use: str = "training") -> Dataset:
        """``data`` as they are.

        Raises:
            ValueError: see :meth:`.Likelihood.check` and :func:`.check_examples`.
        """
        if (client, use) not in self._seen:
            check_examples(data, self._task.dtype)
            with self._task.likelihood_at(None) as likelihood:
                likelihood.check(data.targets)
            self._seen.add((client, use))
        return data


class Executor:
    """Client-side computation (Eq. 25 and 26) for one process.

    Attributes:
        psi_mask: ``[P]``, 1 where psi is learned.
        checked: see :class:`.Checked`.
    """

    def __init__(self, protocol: Protocol) -> None:
        keep_freed_memory()
        self.protocol, self.checked = protocol, Checked(protocol.task)
        self.device = torch.device(protocol.settings.device)
        self.psi_mask = protocol.psi_mask.to(self.device)
        self._here: tuple[Round, Round] | None = None  # the last round, and it on the device
        self._subnetworks: dict[tuple[Partition, int], tuple[Tensor, Point]] = {}

    def answers(self, round: Round, shards: Sequence[Dataset]) -> Answer:
        """What the clients whose shards these are answer to the server's values."""

        def answer(client: int) -> Update:
            jobs = self.protocol.plan(client, round.number)
            try:
                update = self.run(round, client, shards[client], jobs)
                self.protocol.check(client, update, jobs, round.limit)
            except (ClientError, Refusal):
                raise
            except Exception as error:
                raise ClientError.of(client, round.number, error) from error
            return update

        return answer

    def run(self, round: Round, client: int, shard: Dataset, jobs: Sequence[Job]) -> Update:
        """Execute ``jobs``, in any order, on the client's shard, from the server's values.

        Raises:
            ClientError: the shard is empty, the loss is not finite, or the computation fails.
            ValueError: the targets do not fit the likelihood.
        """
        if len(shard) == 0:
            raise ClientError(f"Client {client} has no examples; give every client at least one.")
        start, view = time.perf_counter(), self.view(round, client)
        shard = self.checked(client, shard).to(self.device)
        update = Update(examples=count_learned(self.protocol, len(shard)))
        losses: dict[Job, float] = {}
        for job in jobs:
            try:
                losses[job] = loss = self._run_job(update, round, view, shard, job)
            except IndexError as error:
                raise ClientError(
                    f"The data of client {client} do not fit the network ({error}); {MISFIT}."
                ) from error
            except Exception as error:
                raise ClientError.of(client, round.number, error) from error
            if not math.isfinite(loss):
                raise ClientError(
                    f"The loss of client {client} in round {round.number} is {loss} (subnetwork "
                    f"{job.subnetwork}); {self.protocol.method.remedy}."
                )
        if losses:
            update.loss = losses[reported(losses)]
        if (unseen := self.protocol.unseen(client, losses)) is not None:
            update.unseen_loss, update.unseen_examples = losses[unseen], update.examples
        seconds = time.perf_counter() - start
        return self.protocol.send(update, client, round, seconds)

    def view(self, round: Round, client: int) -> ClientView:
        """The client in this round, with the server's psi on the device."""
        return self.protocol.view(client, round.number, self.on_device(round).psi)

    def on_device(self, round: Round) -> Round:
        """The server's values where they are computed with; copied there once per round."""
        if self._here is None or self._here[0] is not round:
            # psi in memory of our own, as the subnetworks are
            psi = round.psi.to(self.device, copy=True)
            self._here = round, replace(round, w=round.w.to(self.device), psi=psi)
            self._subnetworks.clear()
        return self._here[1]

    def subnetwork(self, round: Round, partition: Partition, k: int) -> tuple[Tensor, Point]:
        """w_s^(k) at the server's values, in the module's own order; built once per round."""
        w = self.on_device(round).w
        if (partition, k) not in self._subnetworks:
            theta = partition.subnetwork(w, k)
            self._subnetworks[partition, k] = theta, Point(partition.space_of(k), theta)
        return self._subnetworks[partition, k]

    def own_point(self, partition: Partition, k: int, theta: Tensor) -> Point:
        """A point of one client's own; casts of those before are not kept, see :func:`.kept_casts`."""
        torch.clear_autocast_cache()
        return Point(partition.space_of(k), theta)

    def _run_job(self, update: Update, round: Round, view: ClientView, shard: Dataset, job: Job) -> float:
        """Add what one job has found to the update; its loss, nats."""
        protocol, j, k = self.protocol, job.partition, job.subnetwork
        partition, method = protocol.partition_of(view.number), protocol.method
        start, point = self.subnetwork(round, partition, k)
        psi, asked, sgd = method.local_psi(view), differentiated(protocol, job), None
        local, theta, sizes = method.local_settings(view), start, list[int]()
        loss = method.objective(view, partial(learned_targets, protocol, view.number, shard))
        if j is not None:
            w_j, steps = partial(partition.take, start, j, k), count_batches(protocol, local, len(shard), job)
            sizes = [*method.architectures(view, steps)]
            decay = local.decays(protocol.chunks)[j - 1]
            sgd = LocalSGD(w_j, local.sgd, decay, steps, final=asked != job)
        psi_sum, loss_sum, seen = torch.zeros_like(psi), 0.0, 0
        for step, (batch, noise) in enumerate(self.batches(view, local, shard, job)):
            if sgd is not None and j is not None and step > 0:
                theta = partition.put(start, j, k, sgd.values)
            if sgd is not None and (size := sizes[step]) != view.parts[0]:
                found = self._through(loss, size, partition, asked, theta, psi, batch, noise)
            else:
                if theta is not start:
                    point = self.own_point(partition, k, theta)
                found = gradients(view.task, loss, asked, point, psi, batch, noise)
            if found.psi is not None:
                psi_sum += found.psi * batch.examples
            if sgd is not None and j is not None and found.theta is not None:
                sgd.step(partition.take(found.theta, j, k))
            loss_sum += found.loss * batch.examples
            seen += batch.examples
        update.visited += seen
        if asked.psi:
            update.psi = psi_sum * self.psi_mask / seen
        elif job.psi:
            after = start if sgd is None or j is None else partition.put(start, j, k, sgd.values)
            update.psi = self.feedback(round, view, shard, job, after)
        if sgd is not None and j is not None:
            update.deltas |= partition.in_cells(j, sgd.change())
        return loss_sum / seen

    def _through(
        self, loss: Objective, size: int, whole: Partition, job: Job, theta: Tensor, psi: Tensor,
        batch: Batch, noise: Noise,
    ) -> Gradients:  # fmt: skip
        """Gradients through the network of an architecture that is a part of the client's, at its weights."""
        protocol = self.protocol
        if not whole.has(protocol.partitions[size]):
            raise ValueError(f"The architecture {size} is no part of the client's; choose from client.parts.")
        part, places = protocol.partitions[size], whole.places(protocol.partitions[size]).to(theta.device)
        point = self.own_point(part, job.subnetwork, theta[places])
        found = gradients(protocol.tasks[size], loss, job, point, psi, batch, noise)
        if found.theta is None:
            return found
        return found._replace(theta=torch.zeros_like(theta).index_copy_(0, places, found.theta))

    def feedback(self, round: Round, view: ClientView, shard: Dataset, job: Job, after: Tensor) -> Tensor:
        """See :func:`.feedback`; ``after [n]``: the job's subnetwork as the client has trained it."""
        partition, k = self.protocol.partition_of(view.number), job.subnetwork
        points = self.subnetwork(round, partition, k)[1], self.own_point(partition, k, after)
        return feedback(
            self.protocol, view, len(shard), *points, partial(self.noisy, view, shard, "held out")
        )

    def batches(
        self, view: ClientView, local: LocalSettings, shard: Dataset, job: Job
    ) -> Iterator[tuple[Batch, Noise]]:
        """What the job visits, batch by batch, each with its noise."""
        purpose = "psi" if job.partition is None else f"train {job.partition}"
        places = local_batches(self.protocol, view, local, len(shard), job)
        return self.noisy(view, shard, purpose, places)

    def noisy(
        self, view: ClientView, shard: Dataset, purpose: str, batches: Sequence[Tensor]
    ) -> Iterator[tuple[Batch, Noise]]:
        """The examples at the places of each batch, each batch with its noise."""
        key = NoiseKey(view.seed, purpose, (view.number, view.round))
        return noisy_batches(shard, batches, key, self.device, view.task.dtype)
