"""Stack: jobs of several clients as one computation, their networks one on top of another (torch.func)."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedpart.engines.alike import loss_and_draws
from fedpart.engines.batches import purpose_of
from fedpart.engines.executor import Executor
from fedpart.engines.vectorised.gradients import stacked_gradients, upload
from fedpart.randomness.noise import Draws
from fedpart.randomness.rows import keys_of
from fedpart.randomness.streams import NoiseKey
from fedpart.task.gradients import Job
from fedpart.task.task import Batch
from fedpart.training.local import LocalSettings
from fedpart.training.optimisers import PartSGD
from fedpart.trees import Tree, map_leaves
from fedpart.updates.update import Round


class ClientJob(NamedTuple):
    """One job of one client.

    ``local``: how the client trains; ``batches``: where the examples of each local step lie in the stack's
    data, ``[b]`` int64 on the CPU.
    """

    client: int
    local: LocalSettings
    job: Job
    batches: list[Tensor]

    @property
    def order(self) -> tuple[float | str, ...]:
        """Equal for those of a stack that are stepped as one; those of more steps come first."""
        rates = self.local.learning_rate, self.local.momentum
        decay = self.local.weight_decay, self.local.decay_scaling
        return -len(self.batches), self.job.partition or 0, self.job.subnetwork, *rates, *decay


class Stack:
    """Computes jobs of one kind together, as :class:`.Executor` does one after another."""

    def __init__(self, executor: Executor) -> None:
        self.protocol, self.device, self._executor = executor.protocol, executor.device, executor
        self._shapes: dict[tuple[Job, str], Draws] = {}

    def run(
        self, round: Round, jobs: Sequence[ClientJob], inputs: Tree, targets: Tree
    ) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """Execute J ``jobs`` of one kind, in :attr:`ClientJob.order`, on their clients' examples.

        Of one kind: all train or none does, all take psi's gradient or none does, networks are of one size,
        and those that do not train use one subnetwork. Losses ``[J]`` are means over the examples seen, in
        nats, float64; there are J changes of w_j, or none without training; psi's are ``[J, P]``, or None.
        """
        task, objective = self.protocol.task, self.protocol.method.loss
        job = jobs[0].job
        space = self.protocol.partition.space_of(job.subnetwork)
        examples = [sum(len(batch) for batch in of.batches) for of in jobs]
        seen = upload(torch.tensor(examples, dtype=torch.float64), self.device)
        server, local_psi = self._executor.on_device(round).psi, self.protocol.method.local_psi
        every = [local_psi(self._executor.view(round, of.client)) for of in jobs]
        psi = server if all(one is server for one in every) else torch.stack(every)  # [P] or [J, P]
        losses, psi_sum = torch.zeros_like(seen), server.new_zeros(len(jobs), len(server))
        start, _ = self._executor.subnetwork(round, self.protocol.partition, job.subnetwork)
        kinds = groupby(jobs, lambda of: of.order) if job.partition is not None else ()
        runs = [_Run(self._executor, round, list(same)) for _, same in kinds]
        for step in range(len(jobs[0].batches)):
            live = [of for of in jobs if len(of.batches) > step]
            moving = [run for run in runs if run.steps > step]
            theta = torch.cat([run.sgd.theta for run in moving]) if moving else start
            batch, sizes = self._batch(live, step, inputs, targets)
            noise = self._noise(round, live, step, batch)
            own = psi if psi.ndim == 1 else psi[: len(live)]
            now, of_theta, of_psi = stacked_gradients(task, space, objective, job, theta, own, batch, *noise)
            losses[: len(live)] += now * sizes
            if of_psi is not None:
                psi_sum[: len(live)] += of_psi * sizes.unsqueeze(1)
            if of_theta is not None:
                gradients = torch.split(of_theta, [run.count for run in moving])
                for run, gradient in zip(moving, gradients, strict=True):
                    run.sgd.step(gradient)
        psi_mean = psi_sum * self._executor.psi_mask / seen.to(psi_sum.dtype).unsqueeze(1)
        deltas = [row.clone() for run in runs for row in run.sgd.change()]
        return losses / seen, deltas, psi_mean if job.psi else None

    def _batch(
        self, live: Sequence[ClientJob], step: int, inputs: Tree, targets: Tree
    ) -> tuple[Batch, Tensor]:
        """The batches of one step, ``[J, b, ...]``, and their sizes ``[J]``; padding repeats an example."""
        batches = [of.batches[step] for of in live]
        sizes = torch.tensor([len(batch) for batch in batches])
        width = int(sizes.max())
        padded = torch.stack([torch.cat([b, b[:1].expand(width - len(b))]) for b in batches])
        places, weights = upload(padded, self.device), None
        if int(sizes.min()) < width:
            real = torch.arange(width) < sizes.unsqueeze(1)
            weights = upload(real, self.device, self.protocol.task.dtype)
        here, wanted = map_leaves(lambda leaf: leaf[places], (inputs, targets))
        return Batch(here, wanted, weights), upload(sizes, self.device)

    def _noise(
        self, round: Round, live: Sequence[ClientJob], step: int, batch: Batch
    ) -> tuple[Tensor, set[int] | None]:
        """Keys ``[J, b S, 6]`` of the noise of one step, as every job draws it alone, and which draws
        examples have in common: where batches are padded, those whose shape is of any size."""
        sizes, job, seed = [len(of.batches[step]) for of in live], live[0].job, self.protocol.settings.seed
        counters = ((step, of.client, round.number) for of in live)
        names = [NoiseKey(seed, purpose_of(of.job), own) for of, own in zip(live, counters, strict=True)]
        rows = max(sizes) * self.protocol.task.samples
        keys = upload(torch.from_numpy(np.stack([keys_of(name, rows) for name in names])), self.device)
        if min(sizes) == max(sizes):
            return keys, None
        some = (map_leaves(lambda leaf, n=n: leaf[0, :n], batch[:2]) for n in (min(sizes), max(sizes)))
        few, many = (self._shapes_of(round, job, Batch(*parts)) for parts in some)
        return keys, {draw for draw, shape in enumerate(few) if shape == many[draw]}

    def _shapes_of(self, round: Round, job: Job, batch: Batch) -> Draws:
        """Of the noise that a job's loss asks for; looked up once."""
        key = job, str(map_leaves(lambda leaf: tuple(leaf.shape), batch.inputs))
        if key not in self._shapes:
            self._shapes[key] = loss_and_draws(self._executor, round, job, batch)[1]
        return self._shapes[key]


class _Run:
    """Neighbours in a stack that train one partition for as many steps."""

    def __init__(self, executor: Executor, round: Round, jobs: Sequence[ClientJob]) -> None:
        job, local, protocol = jobs[0].job, jobs[0].local, executor.protocol
        self.count, self.steps = len(jobs), len(jobs[0].batches)
        j, k = job.partition or 0, job.subnetwork
        start, _ = executor.subnetwork(round, protocol.partition, k)
        how = local.sgd, local.decays(protocol.chunks)[j - 1], self.steps
        self.sgd = PartSGD(protocol.partition, start.expand(self.count, -1), j, k, *how, final=True)
