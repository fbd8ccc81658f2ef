"""Stack: jobs of several clients as one computation, their networks and noise one on another (torch.func)."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fedpart.engines.alike import loss_and_draws
from fedpart.engines.batches import purpose_of
from fedpart.engines.executor import Executor
from fedpart.partition.space import ParameterSpace
from fedpart.randomness.noise import Draws, Noise, NoiseKey
from fedpart.task.gradients import Job, Objective
from fedpart.task.task import Batch, Task
from fedpart.training.local import LocalSettings
from fedpart.training.optimisers import PartSGD
from fedpart.trees import Tree, map_leaves
from fedpart.updates.update import Round

_PADDING = 0.5  # any number inside (0, 1)


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
        seen = torch.tensor(examples, dtype=self._executor.wide, device=self.device)
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
            draws = self._draws(round, live, step, batch)
            own = psi if psi.ndim == 1 else psi[: len(live)]
            now, of_theta, of_psi = stacked_gradients(task, space, objective, job, theta, own, batch, draws)
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

    def _draws(self, round: Round, live: Sequence[ClientJob], step: int, batch: Batch) -> tuple[Tensor, ...]:
        """The noise of one step, as every job draws it alone."""
        keys, sizes = [], [len(of.batches[step]) for of in live]
        for of in live:
            counter = step, of.client, round.number
            keys.append(NoiseKey(self.protocol.settings.seed, purpose_of(of.job), counter))
        first = {n: Batch(*map_leaves(lambda leaf, n=n: leaf[0, :n], batch[:2])) for n in set(sizes)}
        shapes = {n: self._shapes_of(round, live[0].job, some) for n, some in first.items()}
        own, padded = [shapes[n] for n in sizes], shapes[max(sizes)]
        return stacked_draws(keys, own, padded, self.device, self.protocol.task.dtype)

    def _shapes_of(self, round: Round, job: Job, batch: Batch) -> Draws:
        """Of the noise that a job's loss asks for; found once."""
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


class GivenNoise(Noise):
    """Noise whose numbers are there already: under vmap a stream cannot be drawn per job."""

    def __init__(self, draws: Sequence[Tensor]) -> None:
        super().__init__(NoiseKey(0, "given"))
        self._given = draws

    def bits(self, shape: tuple[int, ...] | torch.Size) -> None:
        """There are none."""

    def uniform(self, shape: tuple[int, ...] | torch.Size, coarse: bool = False) -> Tensor:
        """The next numbers; below vmap, where torch's own functions ask, those of all jobs at once."""
        draw = self._given[self._draws] if self._draws < len(self._given) else None
        below = draw is not None and len(shape) > draw.dim() and torch._C._functorch.is_batchedtensor(draw)
        if draw is None or not below:
            return super().uniform(shape, coarse)
        draw = torch._C._functorch.get_unwrapped(draw)
        if self._shares(shape[1:]):
            draw = draw.repeat_interleave(self._repeat, 1)
        self._draws += 1
        return self._checked(draw, shape)

    def _next(self, shape: tuple[int, ...], coarse: bool) -> Tensor:
        return self._checked(self._given[self._draws] if self._draws < len(self._given) else None, shape)

    def _checked(self, draw: Tensor | None, shape: tuple[int, ...] | torch.Size) -> Tensor:
        if draw is None or draw.shape != shape:
            given = "none" if draw is None else tuple(draw.shape)
            raise ValueError(f"the loss asks for noise of shape {tuple(shape)}, where it was {given} before")
        return draw


def stacked_draws(
    keys: Sequence[NoiseKey],
    draws: Sequence[Draws],
    padded: Draws,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """Every draw of all jobs, ``[jobs, *padded shape]`` each: what a job draws alone, to the bit, padded.

    ``padded`` are the draws of the largest job.
    """
    stacks = [torch.full((len(keys), *largest.shape), _PADDING, device=device) for largest in padded]
    for job, (key, asked) in enumerate(zip(keys, draws, strict=True)):
        noise = Noise(key, device)
        for stack, (shape, coarse) in zip(stacks, asked, strict=True):
            stack[job][tuple(slice(length) for length in shape)] = noise.uniform(shape, coarse)
    return tuple(stack.to(dtype) for stack in stacks)


# vmap takes these apart before autocast sees them.
_AUTOCAST = frozenset(
    (F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
)


def stacked_gradients(
    task: Task,
    space: ParameterSpace,
    objective: Objective,
    job: Job,
    theta: Tensor,
    psi: Tensor,
    batch: Batch,
    draws: Sequence[Tensor],
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Losses of J networks, each on a batch of its own, and their gradients, as :func:`gradients` of each.

    The losses are one ``vmap``. The gradient of their sum holds every network's own, since no network's loss
    depends on another's weights. ``theta`` is ``[J, size]`` in the module's own order, or ``[size]``, one
    network for all, without training; ``psi`` is ``[P]`` for all or ``[J, P]``; of a batch ``[J, b, ...]``.
    Losses ``[J]`` are in nats; gradients are of theta ``[J, size]`` and psi ``[J, P]``, each or None.
    """

    def loss(theta: Tensor, psi: Tensor, parts: tuple[Any, ...], draws: tuple[Tensor, ...]) -> Tensor:
        return objective(task, job, space.tensors(theta), psi, Batch(*parts), GivenNoise(draws))

    theta = theta.detach().requires_grad_(job.partition is not None)
    psi = psi.expand(batch.examples, -1).clone().requires_grad_() if job.psi else psi
    own = (None if theta.ndim == 1 else 0, None if psi.ndim == 1 else 0)
    of_batch = tuple(None if part is None else 0 for part in batch)
    mapped = torch.func.vmap(loss, in_dims=(*own, of_batch, 0), randomness="different")
    with _AsInTheLoop(), sdpa_kernel(SDPBackend.MATH):  # the kernel that takes all networks at once
        losses = mapped(theta, psi, tuple(batch), tuple(draws))
    wanted = [tensor for tensor in (theta, psi) if tensor.requires_grad]
    found = list(torch.autograd.grad(losses.sum(), wanted, allow_unused=True, materialize_grads=True))
    of_psi = found.pop() if job.psi else None
    return losses.detach(), found.pop() if found else None, of_psi


class _AsInTheLoop(TorchFunctionMode):
    """What ``torch.func.vmap`` would change about a network's own arithmetic, put right.

    Convolutions heed autocast; a token beyond its vocabulary ends in an error or a loss that is not a number.
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
        return result


def _lowered(value: Any) -> Any:
    """A tensor in the precision of autocast, if that is on."""
    if not (isinstance(value, Tensor) and torch.is_autocast_enabled(value.device.type)):
        return value
    return value.to(torch.get_autocast_dtype(value.device.type))
