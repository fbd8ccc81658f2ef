"""Stack: jobs of several clients as one computation, their networks and noise one on another (torch.func)."""

import math
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fedpart.engines.alike import loss_and_draws
from fedpart.engines.batches import purpose_of
from fedpart.engines.executor import Executor
from fedpart.partition.space import ParameterSpace
from fedpart.randomness.noise import Draws, RowNoise
from fedpart.randomness.rows import keys_of
from fedpart.randomness.streams import NoiseKey
from fedpart.task.gradients import Job, Objective
from fedpart.task.task import Batch, Task
from fedpart.training.local import Correction, LocalSettings, PartSGD
from fedpart.trees import Tree, map_leaves
from fedpart.updates.update import Round


class ClientJob(NamedTuple):
    """One job of one client.

    ``local``: how the client trains; ``batches``: where the examples of each local step lie in the stack's
    data, ``[b]`` int64 on the CPU; ``correction``: of its gradients."""

    client: int
    local: LocalSettings
    job: Job
    batches: list[Tensor]
    correction: Correction | None = None

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
        seen = torch.tensor(examples, dtype=self._executor.wide, device=self.device)
        server, local_psi = self._executor.on_device(round).psi, self.protocol.method.local_psi
        every = [local_psi(self._executor.view(round, of.client)) for of in jobs]
        psi = server if all(psi_of is server for psi_of in every) else torch.stack(every)  # [P] or [J, P]
        losses, psi_sum = torch.zeros_like(seen), server.new_zeros(len(jobs), len(server))
        start = self._executor.point(round, self.protocol.partition, job.subnetwork).theta
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
        counts = [len(batch) for batch in batches]
        sizes, width = torch.tensor(counts), max(counts)
        padded = torch.stack([torch.cat([b, b[:1].expand(width - len(b))]) for b in batches])
        places, weights = padded.to(self.device), None
        if min(counts) < width:
            real = torch.arange(width) < sizes.unsqueeze(1)
            weights = real.to(self.device, self.protocol.task.dtype)
        here, wanted = map_leaves(lambda leaf: leaf[places], (inputs, targets))
        return Batch(here, wanted, weights), sizes.to(self.device)

    def _noise(
        self, round: Round, live: Sequence[ClientJob], step: int, batch: Batch
    ) -> tuple[Tensor, set[int] | None]:
        """Keys ``[J, b S, 6]`` of the noise of one step, as every job draws it alone, and which draws
        examples have in common: where batches are padded, those whose shape is of any size."""
        sizes, job, seed = [len(of.batches[step]) for of in live], live[0].job, self.protocol.settings.seed
        counters = ((step, of.client, round.number) for of in live)
        names = [NoiseKey(seed, purpose_of(of.job), who) for of, who in zip(live, counters, strict=True)]
        rows = max(sizes) * self.protocol.task.samples
        keys = torch.from_numpy(np.stack([keys_of(name, rows) for name in names])).to(self.device)
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
        start = executor.point(round, protocol.partition, k).theta
        how = local.sgd, local.decays(protocol.chunks)[j - 1], self.steps
        self.sgd = PartSGD(protocol.partition, start.expand(self.count, -1), j, k, *how, final=True)
        corrected = [of.correction for of in jobs if of.correction is not None]
        shifts = [each.shift for each in corrected if each.shift is not None]
        if corrected:
            self.sgd.correction = Correction(corrected[0].pull, torch.stack(shifts) if shifts else None)


# vmap takes these apart before autocast sees them.
_AUTOCAST = frozenset(
    (F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
)


def stacked_gradients(
    task: Task, space: ParameterSpace, objective: Objective, job: Job, theta: Tensor, psi: Tensor,
    batch: Batch, keys: Tensor, common: Collection[int] | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Losses of J networks, each on a batch of its own, and their gradients, as :func:`gradients` of each.

    The losses are one ``vmap``. The gradient of their sum holds every network's own, since no network's loss
    depends on another's weights. ``theta`` is ``[J, size]`` in the module's own order, or ``[size]``, one
    network for all, without training; ``psi`` is ``[P]`` for all or ``[J, P]``; of a batch ``[J, b, ...]``;
    ``keys [J, b S, 6]`` and ``common`` are those of :class:`.RowNoise`.
    Losses ``[J]`` are in nats; gradients are of theta ``[J, size]`` and psi ``[J, P]``, each or None.
    """

    def loss(theta: Tensor, psi: Tensor, parts: tuple[Any, ...], keys: Tensor) -> Tensor:
        noise = RowNoise(keys, task.dtype, common)
        return objective(task, job, space.tensors(theta), psi, Batch(*parts), noise)

    theta = theta.detach().requires_grad_(job.partition is not None)
    psi = psi.expand(batch.examples, -1).clone().requires_grad_() if job.psi else psi
    mapped_in = (None if theta.ndim == 1 else 0, None if psi.ndim == 1 else 0)
    of_batch = tuple(None if part is None else 0 for part in batch)
    mapped = torch.func.vmap(loss, in_dims=(*mapped_in, of_batch, 0), randomness="different")
    with _AsInTheLoop(), sdpa_kernel(SDPBackend.MATH):  # the kernel that takes all networks at once
        losses = mapped(theta, psi, tuple(batch), keys)
    wanted = [tensor for tensor in (theta, psi) if tensor.requires_grad]
    derivatives = list(torch.autograd.grad(losses.sum(), wanted, allow_unused=True, materialize_grads=True))
    of_psi = derivatives.pop() if job.psi else None
    return losses.detach(), derivatives.pop() if derivatives else None, of_psi


class _AsInTheLoop(TorchFunctionMode):
    """What ``torch.func.vmap`` would change about a network's own arithmetic, put right.

    Convolutions heed autocast; a token beyond its vocabulary ends in an error or a loss that is not a number;
    that of padding is not trained.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _AUTOCAST:
            args = [_lowered(value) for value in args]
            kwargs = {name: _lowered(value) for name, value in kwargs.items()}
        result = func(*args, **kwargs)
        if func is F.embedding:  # the tables of all networks are one: it would read the next network's
            tokens, table = args[:2]
            outside = (tokens < 0) | (tokens >= len(table))
            result = result.masked_fill(outside.unsqueeze(-1), math.nan)
            padding = kwargs.get("padding_idx", args[2] if len(args) > 2 else None)
            if padding is not None:
                result = torch.where((tokens == padding % len(table)).unsqueeze(-1), result.detach(), result)
        return result


def _lowered(value: Any) -> Any:
    """A tensor in the precision of autocast, if that is on."""
    if not (isinstance(value, Tensor) and torch.is_autocast_enabled(value.device.type)):
        return value
    return value.to(torch.get_autocast_dtype(value.device.type))
