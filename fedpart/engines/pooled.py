"""A cohort's batches in one kind of job, pooled into few passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from fedpart.engines.executor import Executor
from fedpart.federated.round import Round
from fedpart.randomness.noise import JoinedNoise, Noise
from fedpart.task.gradients import gradients
from fedpart.task.jobs import Job
from fedpart.task.task import Batch

# Examples times S in one pass: on a CPU its activations stay near, and a GPU is busy.
ROWS = {"cpu": 512, "cuda": 32768}
# A pass is padded to a multiple of so many: kernels are made, and kept, for every shape that they meet.
ROUND = 16


class Part(NamedTuple):
    """A client's batch in a job, with its noise, and how many of its examples each one stands for."""

    batch: Batch
    noise: Noise
    weight: float


class PooledSum:
    """Loss and gradients of one kind of job, summed over examples, a pass whenever there is enough for one.

    Args:
        executor: of this process.
        round: the server's values.
        job: the kind.

    Attributes:
        theta: ``[size]`` in the module's own order; zeros if the job does not train.
        psi: ``[P]``; loss: in nats; examples: how many, each as many times as it counts.
    """

    def __init__(self, executor: Executor, round: Round, job: Job) -> None:
        self._executor, self._job, self._psi = executor, job, executor.on_device(round).psi
        start, self._point = executor.subnetwork(round, executor.protocol.partition, job.subnetwork)
        self._waiting: list[Part] = []
        samples = executor.protocol.task.samples
        self._rows = max(1, ROWS.get(executor.device.type, ROWS["cuda"]) // samples)
        self._round = max(1, ROUND // samples)
        self.theta, self.psi = torch.zeros_like(start), torch.zeros_like(self._psi)
        self.loss = self.examples = 0.0

    def add(self, part: Part) -> None:
        """Take in a batch; no more of them are held than a pass takes."""
        self._waiting.append(part)
        if sum(len(one.batch.inputs) for one in self._waiting) >= self._rows:
            self.flush()

    def flush(self) -> None:
        """Run the pass over what waits for one."""
        if not self._waiting:
            return
        executor, (batches, noises, weights) = self._executor, zip(*self._waiting, strict=True)
        protocol = executor.protocol
        counts = [len(batch.inputs) for batch in batches]
        padding = -sum(counts) % self._round
        found = gradients(
            protocol.task,
            protocol.method.loss,
            self._job,
            self._point,
            self._psi,
            _pooled(batches, weights, padding, protocol.task.dtype),
            JoinedNoise(noises, counts, protocol.task.samples, padding),
        )
        examples = sum(weight * count for weight, count in zip(weights, counts, strict=True))
        if found.theta is not None:
            self.theta.add_(found.theta, alpha=examples)
        if found.psi is not None:
            self.psi += found.psi * examples
        self.loss += found.loss * examples
        self.examples += examples
        self._waiting = []


def _pooled(batches: Sequence[Batch], weights: Sequence[float], padding: int, dtype: torch.dtype) -> Batch:
    """The batches as one, examples of batch i with ``weights[i]``; padding repeats the last with weight 0."""
    inputs, targets = [one.inputs for one in batches], [one.targets for one in batches]
    counts = torch.tensor([len(one.inputs) for one in batches])
    own = [torch.tensor(weights, dtype=dtype).repeat_interleave(counts)]
    if padding:
        for parts in (inputs, targets):
            parts.append(parts[-1][-1:].expand(padding, *parts[-1].shape[1:]))
        own.append(own[-1].new_zeros(padding))
    return Batch(torch.cat(inputs), torch.cat(targets), torch.cat(own).to(inputs[0].device))
