"""Which of a client's examples each local step of a job sees."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from fedpart.federated.protocol import Protocol
from fedpart.randomness.streams import generator
from fedpart.task.jobs import Job


def local_batches(protocol: Protocol, client: int, round: int, examples: int, job: Job) -> list[Tensor]:
    """Places in the client's shard of the examples of each local step, ``[b]`` int64 on the CPU.

    Training visits every example once an epoch, in an order drawn anew; a psi gradient visits the shard, or
    the ``psi_batch`` examples drawn from it, once. Neither sees what the client holds out.

    Args:
        client, round: numbers, from which the draws follow.
        examples: how many the shard has.
    """
    local, seed = protocol.settings.local, protocol.settings.seed
    whole, _ = divided(protocol, client, examples)
    examples = len(whole)
    if job.partition is None:
        if local.psi_batch != "shard" and local.psi_batch < examples:
            rng = generator(seed, "psi batch", client, round)
            whole = whole[torch.from_numpy(rng.permutation(examples)[: local.psi_batch])]
        return list(torch.split(whole, local.batch_size))
    batches: list[Tensor] = []
    for epoch in range(local.epochs):
        order = whole
        if examples > local.batch_size:
            rng = generator(seed, f"shuffle {job.partition}", epoch, client, round)
            order = whole[torch.from_numpy(rng.permutation(examples))]
        batches += torch.split(order, local.batch_size)
    return batches


def divided(protocol: Protocol, client: int, examples: int) -> tuple[Tensor, Tensor]:
    """Places in the client's shard that it learns from, and those that it holds out, in every round.

    Both ascending, int64 on the CPU; nothing is held out unless the method asks for it.
    """
    held = count_held_out(protocol.method.held_out, examples)
    if not held:
        return _all(examples)
    drawn = torch.from_numpy(generator(protocol.settings.seed, "held out", client).permutation(examples))
    return drawn[held:].sort().values, drawn[:held].sort().values


@lru_cache(1024)
def _all(examples: int) -> tuple[Tensor, Tensor]:
    """Every place, and none; shared, so nobody writes to them."""
    return torch.arange(examples, device="cpu"), torch.arange(0, device="cpu")


def count_held_out(share: float, examples: int) -> int:
    """How many of a client's examples are held out: the share of them, rounded up, but never all."""
    return max(0, min(examples - 1, math.ceil(share * examples - 1e-9)))


def count_batches(protocol: Protocol, examples: int, job: Job) -> int:
    """How many :func:`local_batches` there are."""
    local = protocol.settings.local
    examples -= count_held_out(protocol.method.held_out, examples)
    if job.partition is None and local.psi_batch != "shard":
        examples = min(examples, local.psi_batch)
    return -(-examples // local.batch_size) * (1 if job.partition is None else local.epochs)
