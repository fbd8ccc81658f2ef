"""Which of a client's examples each local step of a job sees."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.federated.protocol import Protocol
from fedpart.methods.base import ClientView
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.randomness.streams import generator
from fedpart.task.gradients import Job
from fedpart.task.task import Batch
from fedpart.training.local import LocalSettings
from fedpart.trees import Tree


def purpose_of(job: Job) -> str:
    """What names the noise of a job."""
    return "psi" if job.partition is None else f"train {job.partition}"


def local_batches(
    protocol: Protocol, view: ClientView, local: LocalSettings, examples: int, job: Job
) -> list[Tensor]:
    """Places in the client's shard of the examples of each local step, ``[b]`` int64 on the CPU.

    Training visits every example once an epoch, in an order drawn anew; a psi gradient visits the shard, or
    the ``psi_batch`` examples drawn from it, once. Neither sees what the client holds out, but
    psi's gradients of a method that ``validates``, which see that alone."""
    whole, held, _ = divided(protocol, view.number, examples)

    def drawn(purpose: str, *more: int) -> Tensor:
        rng = generator(view.seed, purpose, *more, view.number, view.round)
        return whole[torch.from_numpy(rng.permutation(len(whole)))]

    if job.partition is None:
        whole = held if protocol.method.validates and len(held) else whole
        some = local.psi_batch != "shard" and local.psi_batch < len(whole)
        orders = [drawn("psi batch")[: local.psi_batch] if some else whole]
    else:
        shuffles, epochs = len(whole) > local.batch_size, range(local.epochs)
        orders = [drawn(f"shuffle {job.partition}", epoch) if shuffles else whole for epoch in epochs]
    return [batch for order in orders for batch in torch.split(order, local.batch_size)]


class Places(NamedTuple):
    """Places in a client's shard, ascending int64 on the CPU: each in one of three, the same every round."""

    learned: Tensor
    feedback: Tensor
    evaluation: Tensor


def divided(protocol: Protocol, client: int, examples: int) -> Places:
    """What the client learns from, and what it holds out for the method or for its evaluations."""
    if not protocol.holds_out:
        return _all(examples)
    feedback, evaluation = _held_out(protocol, examples)
    drawn = torch.from_numpy(generator(protocol.settings.seed, "held out", client).permutation(examples))
    parts = torch.split(drawn, [feedback, evaluation, examples - feedback - evaluation])
    first, second, learned = (part.sort().values for part in parts)
    return Places(learned, first, second)


@lru_cache(1024)
def _all(examples: int) -> Places:
    """Every place is learned from; shared, so nobody writes to them."""
    return Places(torch.arange(examples, device="cpu"), *torch.arange(0, device="cpu").expand(2, 0))


def learned_targets(protocol: Protocol, client: int, shard: Dataset) -> Tree:
    """Those of the examples that the client learns from, ``[n, ...]``."""
    return shard.subset(divided(protocol, client, len(shard)).learned).targets


def count_learned(protocol: Protocol, examples: int) -> int:
    """How many examples of a shard the client learns from; at least one."""
    return examples - sum(_held_out(protocol, examples)) if protocol.holds_out else examples


def told_apart(protocol: Protocol, shards: Sequence[Dataset]) -> tuple[list[Tensor] | None, dict[str, int]]:
    """For :func:`.trained_on`: places that weights learn from, and how many examples clients hold out."""
    if not protocol.holds_out:
        return None, {}
    places = [divided(protocol, client, len(shard)) for client, shard in enumerate(shards)]
    psi, scores = (sum(len(part[kind]) for part in places) for kind in (1, 2))
    return [part.learned for part in places], {"hyperparameters": psi, "clients' scores": scores}


def evaluated(protocol: Protocol, client: int, shard: Dataset) -> Dataset:
    """What the client scores the network on: what it holds out, or its ``evaluation`` examples."""
    if protocol.settings.evaluation_share is not None:
        return shard.subset(divided(protocol, client, len(shard)).evaluation)
    if shard.evaluation is None:
        fault = "evaluation_share is None, but the client has no examples for evaluations"
        remedy = "give Dataset(inputs, targets, evaluation=Dataset(...)), or a share of its examples"
        raise ValueError(f"{fault}; {remedy}.")
    return shard.evaluation


def _held_out(protocol: Protocol, examples: int) -> tuple[int, int]:
    """How many are held out for the method and for evaluations: their shares, rounded up, but never all."""
    settings = protocol.settings
    share = settings.evaluation_share if settings.evaluation == "clients" else None
    evaluation = count_held_out(share or 0.0, examples)
    share = protocol.method.held_out or protocol.method.validates
    return count_held_out(share, examples - evaluation), evaluation


def count_held_out(share: float, examples: int) -> int:
    """The share of so many examples, rounded up, but never all of them."""
    return max(0, min(examples - 1, math.ceil(share * examples - 1e-9)))


def count_visited(protocol: Protocol, local: LocalSettings, examples: int, job: Job) -> int:
    """How many examples they have, each counted whenever it is in one, for a second network, too:
    ``Update.visited`` of the job."""
    held, examples = _held_out(protocol, examples)[0], count_learned(protocol, examples)
    if job.partition is not None:
        return examples * local.epochs * (1 if protocol.settings.combination.tie is None else 2)
    examples = held if protocol.method.validates and held else examples
    return examples if local.psi_batch == "shard" else min(examples, local.psi_batch)


def noisy_batches(
    shard: Dataset, batches: Sequence[Tensor], key: NoiseKey, device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[Batch, Noise]]:
    """The examples at the places of each batch, each batch with its noise."""
    for step, places in enumerate(batches):
        of_step = key._replace(counter=(step, *key.counter))
        yield Batch(*shard.batch(places.to(device))), Noise(of_step, device, dtype)
