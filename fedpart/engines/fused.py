"""Cohort fusion: where every client takes one local step, a cohort's sum is a gradient of its pooled data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.engines.block import BlockRunner, BlockSum, upload_bytes
from fedpart.executor import ClientError
from fedpart.gradients import Gradients, gradients
from fedpart.jobs import Job, reported
from fedpart.noise import JoinedNoise, Noise
from fedpart.optim import joined
from fedpart.protocol import Protocol
from fedpart.task import Batch
from fedpart.update import Update, summable

# Examples times S in one pass: on a CPU its activations stay near, and a GPU is busy.
ROWS = {"cpu": 256, "cuda": 32768}
# A pass is padded to a multiple of so many: kernels are made, and kept, for every shape that they meet.
ROUND = 16


class _Part(NamedTuple):
    """A client's batch in a job, with its noise, and how many of its examples each one stands for."""

    batch: Batch
    noise: Noise
    weight: float


class FusedRunner:
    """Computes a cohort's sum with one pass per kind of job, instead of one per client and job.

    With one step of SGD per client, ``sum_i n_i delta_i = -lr * gradient of the sum of all losses`` (Eq. 25
    from the server's values), and gradients of psi are summed over examples anyway (Eq. 26). No client's own
    update exists, so that nothing can look at one.

    Args:
        protocol: of the run.
        shards: ``shards[client]`` is the client's data.

    Raises:
        ValueError: clients take several steps, do not weigh as much as their examples, have their updates
            looked at, or compute under a psi of their own or score networks of their own.
    """

    def __init__(self, protocol: Protocol, shards: Sequence[Dataset]) -> None:
        local, weighting = protocol.settings.local, protocol.settings.weighting
        if local.epochs != 1:
            raise ValueError(
                f"Fused clients take one step each, but local.epochs is {local.epochs}; set it to 1, or use "
                f"execution: loop."
            )
        if weighting != "examples":
            raise ValueError(
                f"Fused clients weigh as much as their examples, but weighting is {weighting!r}; set it to "
                f"examples, or use execution: loop."
            )
        if protocol.method.individual:
            raise ValueError(
                f"Fused clients have no psi and no network of their own, which the method "
                f"{protocol.settings.method!r} asks for; use execution: loop."
            )
        if protocol.settings.separate:
            raise ValueError(
                "Fused clients have no updates of their own to clip, to trim or to make private; leave clip, "
                "trim and privacy out, or use execution: loop."
            )
        if isinstance(shards, (list, tuple)):  # others are read when they are needed
            for client, shard in enumerate(shards):
                _check_steps(client, len(shard), -(-len(shard) // local.batch_size))
        self.protocol, self.shards = protocol, shards
        self._one_by_one = BlockRunner(protocol, shards)

    def sum(self, round: int, parts: Sequence[Sequence[int]], w: Tensor, psi: Tensor) -> BlockSum:
        """The sum over a round's cohort at the server's ``w [size]`` and ``psi [P]``.

        If it cannot be computed, the clients are run one by one, which names the one to blame.

        Raises:
            ClientError: a client failed, and the settings say ``fail``; or the clients cannot be fused.
        """
        clients = [client for part in parts for client in part]
        self._one_by_one.begin(round, w, psi)
        try:
            return self._fused(clients)
        except _NotFused as error:
            raise ClientError(str(error)) from error
        except Exception as error:
            found = self._one_by_one.sum(round, parts, w, psi)
            if not found.skipped:
                reason = " ".join(str(error).split())
                raise ClientError(
                    f"The clients of round {round} cannot be fused ({reason}); use execution: loop."
                ) from error
            return found

    def _fused(self, clients: Sequence[int]) -> BlockSum:
        executor, size = self._one_by_one.executor, 0
        total, groups = Update(clients=len(clients)), dict[tuple[Job, bool], list[_Part]]()
        for client in clients:
            jobs, shard = self.protocol.plan(client, executor.round), self.shards[client].to(executor.device)
            if len(shard) > self.protocol.settings.max_examples:
                raise ArithmeticError("a client has more than max_examples")
            total.examples += len(shard)
            size += upload_bytes(self.protocol, jobs)
            main = reported(jobs)
            for job in jobs:
                batches = list(executor.batches(client, shard, job))
                if job.partition is not None:
                    _check_steps(client, len(shard), len(batches))
                weight = len(shard) / sum(len(batch.inputs) for batch, _ in batches)  # of a psi batch
                groups.setdefault((job, job == main), []).extend(
                    _Part(batch, noise, weight) for batch, noise in batches
                )
        total.total_weight = float(total.examples)
        for (job, is_main), parts in groups.items():
            loss = self._add(total, job, parts)
            total.loss += loss if is_main else 0.0
        if not (math.isfinite(total.loss) and summable(total)):
            raise ArithmeticError("the loss or its gradient is not finite")
        return BlockSum(total, size)

    def _add(self, total: Update, job: Job, batches: list[_Part]) -> float:
        """Add one kind of job to the sum; the sum of its losses over all examples, in nats."""
        executor, j = self._one_by_one.executor, job.partition
        partition, local = self.protocol.partition, self.protocol.settings.local
        start, _ = executor.subnetwork(job.subnetwork)
        w_sum: list[Tensor] = []
        psi_sum, loss_sum, seen = torch.zeros_like(executor.psi), 0.0, 0.0
        # Autocast keeps its 16-bit copies of weights until the outermost one ends: here, after the last pass.
        with torch.autocast(executor.device.type, enabled=False):
            for examples, found in self._passes(job, batches):
                if found.w is not None:
                    w_sum = w_sum or [torch.zeros_like(piece) for piece in found.w]
                    for total_of_piece, piece in zip(w_sum, found.w, strict=True):
                        total_of_piece.add_(piece, alpha=examples)
                if found.psi is not None:
                    psi_sum += found.psi * examples
                loss_sum += found.loss * examples
                seen += examples
        if j is not None:
            gradient = joined(partition.select(w_sum, j))
            if executor.decays[j - 1]:
                gradient = gradient.add(partition.take(start, j), alpha=executor.decays[j - 1] * seen)
            delta = gradient.mul_(-local.learning_rate)
            total.deltas[j] = delta if j not in total.deltas else total.deltas[j].add_(delta)
            total.weights[j] = total.weights.get(j, 0.0) + seen
        if job.psi:
            psi_sum *= executor.psi_mask
            total.psi = psi_sum if total.psi is None else total.psi.add_(psi_sum)
            total.psi_weight += seen
        return loss_sum

    def _passes(self, job: Job, batches: list[_Part]) -> Iterator[tuple[float, Gradients]]:
        """Number of examples, and gradients of their mean loss, of one pass after the other."""
        executor, task = self._one_by_one.executor, self.protocol.task
        _, point = executor.subnetwork(job.subnetwork)
        rows = max(1, ROWS.get(executor.device.type, ROWS["cuda"]) // task.samples)
        waiting: list[_Part] = []
        for place, part in enumerate(batches, start=1):
            waiting.append(part)
            counts = [len(one.batch.inputs) for one in waiting]
            if sum(counts) < rows and place < len(batches):
                continue
            padding = -sum(counts) % max(1, ROUND // task.samples)
            batch = _pooled(
                [one.batch for one in waiting], [one.weight for one in waiting], padding, task.dtype
            )
            noise = JoinedNoise([one.noise for one in waiting], counts, task.samples, padding)
            objective = self.protocol.method.loss
            yield (
                sum(one.weight * count for one, count in zip(waiting, counts, strict=True)),
                gradients(task, None, objective, job, point, executor.psi, batch, noise),
            )
            waiting = []


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


def _check_steps(client: int, examples: int, steps: int) -> None:
    if steps > 1:
        raise _NotFused(
            f"Client {client} takes {steps} steps with its {examples} examples, but fused clients take one; "
            f"raise local.batch_size, or use execution: loop."
        )


class _NotFused(ValueError):
    """Settings and data do not allow for fusion; the message is for the user."""
