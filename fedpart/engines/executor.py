"""Executor: what a client computes, from the server's values to its update. Every engine calls it."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedpart.data.cells import check_examples
from fedpart.data.dataset import Dataset, OnDevice
from fedpart.engines import batches as batching
from fedpart.federated.cohorts import CohortSum
from fedpart.federated.protocol import Protocol
from fedpart.kernels import keep_freed_memory
from fedpart.methods.base import ClientView
from fedpart.partition.partition import Partition
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.task.gradients import Gradients, Job, Objective, Point, gradients, reported
from fedpart.task.held_out import score
from fedpart.task.task import Batch, Task
from fedpart.training.local import (
    ClientLoop,
    Correction,
    LocalSettings,
    PartSGD,
    TrainFn,
    check_own_steps,
    own_steps,
    visited,
)
from fedpart.trees import read, wide
from fedpart.updates import stages
from fedpart.updates.errors import ClientError, blamed
from fedpart.updates.update import PSI, Round, Update


class Checked:
    """Clients' data whose targets have been looked at: once for each client and use, in this process."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._seen: set[tuple[int, str]] = set()

    def __call__(self, client: int, data: Dataset, use: str = "training") -> Dataset:
        """``data`` as they are."""
        if len(data) == 0 and use == "training":
            raise ClientError(f"Client {client} has no examples; give every client at least one.")
        if (client, use) not in self._seen:
            check_examples(data, self._task.dtype)
            with self._task.likelihood_at(None) as likelihood:
                likelihood.check(data.targets)
            self._seen.add((client, use))
        return data


class Executor:
    """Client-side computation (Eq. 25 and 26) for one process."""

    def __init__(self, protocol: Protocol, train_fn: TrainFn | None = None) -> None:
        keep_freed_memory()
        self._own = train_fn is not None
        self._loop: ClientLoop = visited if train_fn is None else partial(own_steps, train_fn)
        if self._own:
            check_own_steps(protocol.settings, protocol.method.held_out)
        self.protocol, self.checked = protocol, Checked(protocol.task)
        self.device = torch.device(protocol.settings.device)
        self.wide, self.moved = wide(self.device), OnDevice(self.device)
        self.psi_mask = protocol.psi_mask.to(self.device)
        doing, pull = partial(stages.doing, protocol.stages), protocol.settings.combination.pull
        self._begin, self._send = doing("begin"), [*doing("send"), *doing("sent")[::-1]]
        self._personal = stages.stage_of(protocol.stages, stages.Personal)
        self._corrects = self._personal or stages.stage_of(protocol.stages, stages.Combining)
        self._pull = None if protocol.draws or not pull else Correction(pull)  # or see :meth:`_through`
        self._plain = not self._send and protocol.settings.on_client_error == "fail"
        self.doubts: list[Tensor] | None = None  # what is looked at later, see :meth:`settled`
        none = torch.zeros(0)
        self._round = self._here = Round(0, none, none)  # the last one, and it on the device
        self._points: dict[tuple[Partition, int], Point] = {}

    def answer(self, round: Round, shards: Sequence[Dataset], client: int) -> Update:
        """What the client, whose shard is one of these, answers to the server's values, see ``Answer``."""
        jobs = self.protocol.plan(client, round.number)
        with blamed(client, round.number):
            return self.check(self.run(round, client, shards[client], jobs), round)

    def check(self, update: Update, round: Round) -> Update:
        """``update``, unless its numbers cannot be summed; or how long they are is noted, for later."""
        if self.doubts is None or update.examples > self.protocol.settings.max_examples:
            self.protocol.check(update, round.limit)
        else:
            self.doubts += [torch.dot(tensor, tensor).sqrt() for tensor in update.parts.values()]
        return update

    def settled(self, round: Round, compute: Callable[[], CohortSum]) -> CohortSum:
        """What ``compute`` makes of a cohort, whose numbers are read together, when all are there.

        Where one is not as it should be, all is computed again, and looked at client by client, for an error
        that names who is to blame. So it is where something has to see the clients' own updates."""
        if self._plain and round.bounds is None and round.of_all is None:
            self.doubts = doubts = list[Tensor]()
            try:
                if (total := compute()).settle(doubts):
                    return total
            except Exception:
                if CohortSum().settle(doubts):  # no client before this one is to blame
                    raise
            finally:
                self.doubts = None
        return compute()

    def run(self, round: Round, client: int, shard: Dataset, jobs: Sequence[Job]) -> Update:
        """Execute ``jobs``, in any order, on the client's shard, from the server's values.

        Raises:
            ClientError: the shard is empty, or the loss is not finite; other errors are of the computation.
        """
        start, view = time.perf_counter(), self.view(round, client)
        shard = self.moved(self.checked(client, shard))
        learned = batching.count_learned(self.protocol, len(shard))
        work, update = [*jobs], Update(examples=learned)
        begun, *second = self.begin(update, client, round)
        losses: list[Any] = [self._run_job(update, begun, view, shard, job) for job in jobs]
        for mine in second:
            apart, more = Update(), [replace(job, psi=False) for job in jobs if job.partition is not None]
            losses += [self._run_job(apart, mine, view, shard, job) for job in more]
            if self._personal is not None:
                self._personal.keep(update, mine, apart.parts)
            work, update.visited = work + more, update.visited + apart.visited
        if self.doubts is None:
            losses = read(losses)
            for job, loss in zip(work, losses, strict=True):
                if not (math.isfinite(loss) or round.trial):  # then it is refused
                    rate = f"local.learning_rate {view.local.learning_rate:g}"
                    fault = f"The loss of client {client} in round {round.number} is {loss} (subnetwork"
                    raise ClientError(f"{fault} {job.subnetwork}, {rate}); {self.protocol.method.remedy}.")
        self.note(update, client, dict(zip(jobs, losses, strict=False)))
        update.seconds = time.perf_counter() - start
        return self.send(update, client, round)

    def begin(self, update: Update, client: int, round: Round) -> list[Round]:
        """Give an update that a client is about to compute what it has kept for that. What it begins from:
        for what it sends, and, if it trains a second network, for that."""
        for restore in self._begin:
            restore(update, client, round)
        return [round] if self._personal is None else self._personal.starts(update, round)

    def scored(self, client: int, round: Round) -> Round:
        """The values with which the client is scored: the server's, or those that it has for itself."""
        return round if self._personal is None else self.begin(Update(), client, round)[-1]

    def correction(self, update: Update, client: int, round: Round, j: int | None) -> Correction | None:
        """What the client that makes ``update`` adds to the gradients of w_j; ``round``: on its device."""
        if self._corrects is None or j is None:
            return self._pull
        return self._corrects.correction(update, round, self.protocol.partition_of(client), j)

    def send(self, update: Update, client: int, round: Round) -> Update:
        """A client's update as it leaves the client, changed by all stages in place."""
        for change in self._send:
            change(update, client, round)
        return update

    def note(self, update: Update, client: int, losses: Mapping[Job, Any]) -> None:
        """Write down which of the jobs' losses a client tells, and which is its term of L_ML; they may be
        tensors, which are then looked at later."""
        if self.doubts is not None:
            self.doubts += losses.values()
        update.loss = losses[reported(losses)] if losses else 0.0
        if (unseen := self.protocol.unseen(client, losses)) is not None:
            update.unseen_loss, update.unseen_examples = losses[unseen], update.examples

    def view(self, round: Round, client: int) -> ClientView:
        """The client in this round, with the server's psi on the device."""
        return self.protocol.view(client, round.number, self.on_device(round).psi, round.local_rate)

    def on_device(self, round: Round) -> Round:
        """The server's values where they are computed with; copied there once per round."""
        if self._round is not round:
            self._round, self._here = round, round.to(self.device)
            self._points.clear()
        return self._here

    def point(self, round: Round, partition: Partition, k: int) -> Point:
        """w_s^(k) at the server's values, in the module's own order; built once per round."""
        w = self.on_device(round).w
        if (partition, k) not in self._points:
            self._points[partition, k] = Point(partition.space_of(k), partition.subnetwork(w, k))
        return self._points[partition, k]

    def own_point(self, partition: Partition, k: int, theta: Tensor) -> Point:
        """A point of one client's own; casts of those before are not kept, see :func:`.kept_casts`."""
        torch.clear_autocast_cache()
        return Point(partition.space_of(k), theta)

    def _run_job(self, update: Update, round: Round, view: ClientView, shard: Dataset, job: Job) -> Tensor:
        """Add what one job has found to the update; its loss, nats."""
        protocol, method, j, k = self.protocol, self.protocol.method, job.partition, job.subnetwork
        partition = protocol.partition_of(view.number)
        asked = replace(job, psi=False) if method.held_out else job  # feedback takes psi's place
        local, psi = method.local_settings(view), method.local_psi(view)
        loss = method.objective(view, partial(batching.learned_targets, protocol, view.number, shard))
        batches = batching.local_batches(protocol, view, local, len(shard), job)
        start, sgd = self.point(round, partition, k), None
        sizes = view.drawn_sizes(len(batches)) if protocol.draws and j is not None else ()
        if j is not None:
            decay = 0.0 if sizes else local.decays(protocol.chunks)[j - 1]
            how = local.sgd, decay, len(batches), asked != job or self._own
            sgd = PartSGD(partition, start.theta, j, k, *how)
            sgd.correction = self.correction(update, view.number, self.on_device(round), j)

        def at(step: int, batch: Batch, noise: Noise) -> Gradients:
            if sgd is not None and sizes:
                size = sizes[step % len(sizes)]
                return self._through(loss, size, partition, local, asked, start, sgd, psi, batch, noise)
            here = start if sgd is None or not step else self.own_point(partition, k, sgd.theta)
            return gradients(view.task, loss, asked, here, psi, batch, noise)

        psi_sum, loss_sum, seen = torch.zeros_like(psi), psi.new_zeros((), dtype=self.wide), 0
        noisy = self.noisy(view, shard, batching.purpose_of(job), batches)
        for result, examples in self._loop(noisy, at, sgd):
            loss_sum, seen = loss_sum + result.loss.to(self.wide) * examples, seen + examples
            if result.psi is not None:
                psi_sum += result.psi * examples
        update.visited += seen
        if asked.psi:
            update.parts[PSI] = psi_sum * self.psi_mask / seen
        elif job.psi:
            after = start.theta if sgd is None else sgd.theta
            update.parts[PSI] = self.feedback(round, view, shard, job, after)
        if sgd is not None and j is not None:
            update.parts |= partition.in_cells(j, sgd.change())
        return loss_sum / seen

    def _through(
        self, loss: Objective, size: int, whole: Partition, local: LocalSettings, job: Job, start: Point,
        sgd: PartSGD, psi: Tensor, batch: Batch, noise: Noise,
    ) -> Gradients:  # fmt: skip
        """Gradients through the network of an architecture that is a part of the client's, at its weights,
        with all that is added to them; those of other weights are 0."""
        protocol, part, task = self.protocol, self.protocol.partitions[size], self.protocol.tasks[size]
        theta, places = sgd.theta, whole.places(part).to(start.theta.device)
        mine = theta[places]
        point = self.own_point(part, job.subnetwork, mine)
        result = gradients(task, loss, job, point, psi, batch, noise)
        if result.theta is None or job.partition is None:
            return result
        decay, pull = local.decays(protocol.chunks)[job.partition - 1], protocol.settings.combination.pull
        gradient = result.theta + decay * mine + pull * (mine - start.theta[places])
        return result._replace(theta=torch.zeros_like(theta).index_copy_(0, places, gradient))

    def feedback(self, round: Round, view: ClientView, shard: Dataset, job: Job, trained: Tensor) -> Tensor:
        """What takes psi's gradient's place where examples are held out, ``[P]`` per example learned from, by
        the method's ``feedback``; ``trained [n]``: the job's subnetwork as trained."""
        protocol, k = self.protocol, job.subnetwork
        partition, method = protocol.partition_of(view.number), protocol.method
        learned, held, _ = batching.divided(protocol, view.number, len(shard))
        batches = torch.split(held, protocol.settings.local.batch_size) if len(held) else ()
        points = self.point(round, partition, k), self.own_point(partition, k, trained)
        psi, noisy = method.local_psi(view), partial(self.noisy, view, shard, "held out", batches)
        before, after = (score(view.task, point.tensors, psi, noisy()) for point in points)
        return method.feedback(view, before, after) / len(learned)

    def noisy(
        self, view: ClientView, shard: Dataset, purpose: str, batches: Sequence[Tensor]
    ) -> Iterator[tuple[Batch, Noise]]:
        """The examples at the places of each batch, each batch with its noise."""
        key = NoiseKey(view.seed, purpose, (view.number, view.round))
        return batching.noisy_batches(shard, batches, key, self.device, view.task.dtype)
