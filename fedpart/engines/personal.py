"""personalise(): a trained network, fine-tuned on one client's examples with psi fixed."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from fedpart.checks import check_texts, check_whole, is_number, require
from fedpart.data.dataset import Dataset
from fedpart.data.given import Examples, as_dataset
from fedpart.engines.batches import count_held_out, noisy_batches
from fedpart.partition.sharing import plain_name
from fedpart.partition.space import ParameterSpace
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.randomness.streams import generator
from fedpart.registry import nearest
from fedpart.task.gradients import Gradients, Job, Point, gradients
from fedpart.task.held_out import score
from fedpart.task.task import Batch, Task
from fedpart.training.local import LocalSettings, LocalSGD, visited
from fedpart.training.optimisers import SGDSettings
from fedpart.training.result import Result
from fedpart.training.state import ModelState, rows_at_once
from fedpart.updates.errors import ClientError, blamed

_FULL = Job(subnetwork=1, partition=1)  # the whole network, as one partition


@dataclass(frozen=True, eq=False)
class Personal:
    """A network of one client's own.

    Attributes:
        module: as :meth:`.ModelState.module`, fine-tuned: plain, on the CPU, in eval mode, psi set.
        examples: how many it was fine-tuned on; held_out: how many it was scored on.
        before, after: scores on the held-out examples, of the trained network and of ``module``, S samples
            averaged, dropout off: ``nll`` (nats per example), and ``accuracy`` where there are classes.
    """

    module: nn.Module
    examples: int
    held_out: int
    before: dict[str, float]
    after: dict[str, float]


def personalise(
    result: Result[Any] | ModelState, shard: Examples, *, client: int = 0, held_out: float | Examples = 0.25,
    epochs: int = 5, batch_size: int = 64, sgd: SGDSettings | None = None, weight_decay: float = 0.0,
    layers: Sequence[str] = ("*",), samples: int | None = None,
) -> Personal:  # fmt: skip
    """Fine-tune what a run has learned on one client's examples, and score it there before and after.

    Training minimises the mean negative log-likelihood under the learned augmentation and dropout. The result
    is left as it is. The same arguments give the same bits.

    Held-out examples are not fine-tuned on. If the run has trained on the shard, it has seen them all the
    same: both scores are then too good, and their difference is that of two networks that have seen them.

    Args:
        result: of ``federate`` or ``fit``, or a state.
        shard: the client's examples.
        client: its number, which names the random numbers.
        held_out: share of the shard to score on, rounded up and drawn at random, between 0 and 1; or other
            examples to score on, and then all of the shard is trained on.
        epochs, batch_size: passes over the examples, and how many of them a step takes.
        sgd: learning rate and momentum; torch's SGD with 0.05 if not given.
        weight_decay: of the weights that move.
        layers: names of the weights that move, with the wildcards ``*`` and ``?``; all others stay. The last
            layer's alone are a personal head (FedPer, Arivazhagan et al. 2019).
        samples: score with so many samples instead of S.

    Raises:
        ValueError: a share, a count or a name that does not fit, a shard too small to hold an example out, or
            targets that do not fit the likelihood.
        ClientError: the loss is not finite, or the examples do not fit the network.
    """
    counts = {"epochs": epochs, "batch_size": batch_size, "samples": 1 if samples is None else samples}
    for name, count in counts.items():
        check_whole(name, count, 1)
    check_whole("client", client, 0)
    check_texts("layers", layers, "names of layers", "[fc1, conv*]")
    decay_is_number = is_number(weight_decay) and 0 <= weight_decay < math.inf
    require(decay_is_number, f"weight_decay is a number, at least 0, got {weight_decay!r}.")
    other = f"sgd are SGDSettings(learning_rate, momentum), got {type(sgd).__name__}."
    require(isinstance(sgd, SGDSettings | None), other)
    state = result.state if isinstance(result, Result) else result
    fault = "personalise() takes what federate() or fit() returns, or a state of it, got a"
    require(isinstance(state, ModelState), f"{fault} {type(state).__name__}; hand over the whole result.")
    kept, scored = _divided(as_dataset(shard), held_out, state.seed, client)
    for part in (kept, scored):
        state.check(part)
    device, trained, tuning = state.w.device, state.tensors(), _Tuning(state, client)
    space, rates = _moving(state.task, layers), sgd or SGDSettings()
    local = LocalSettings(
        weight_decay=weight_decay,
        learning_rate=rates.learning_rate,
        momentum=rates.momentum,
        batch_size=batch_size,
        epochs=epochs,
    )
    kept, scored = kept.to(device), scored.to(device)
    with blamed(client, None):
        before = tuning.scores(trained, scored, samples)
        moved = tuning.train(kept, space, local, trained)
        after = tuning.scores({**trained, **moved}, scored, samples)
    tuning.check(after["nll"])
    return Personal(state.module(moved), len(kept), len(scored), before, after)


def _divided(shard: Dataset, held_out: float | Examples, seed: int, client: int) -> tuple[Dataset, Dataset]:
    """What is trained on, and what is scored."""
    if not isinstance(held_out, (int, float)):
        scored = as_dataset(held_out)
        fault = f"Client {client} has {len(shard)} examples to train on and {len(scored)} to be scored on"
        require(len(shard) and len(scored), f"{fault}; give at least one of each.")
        return shard, scored
    n, share = len(shard), "The share that is held out lies between 0 and 1, for instance 0.25"
    require(0 < held_out < 1, f"{share}, got {held_out!r}.")
    fault = f"Client {client} has too few examples ({n}) to train on some and hold out others"
    require(n > 1, f"{fault}; it takes two.")
    count = count_held_out(held_out, n)
    order = torch.from_numpy(generator(seed, "personal held out", client).permutation(n))
    return shard.subset(order[count:].sort().values), shard.subset(order[:count].sort().values)


def _moving(task: Task, layers: Sequence[str]) -> ParameterSpace:
    """The weights that move, in the module's own order; normalisation's are one vector here, folded."""
    names = [entry.name for entry in task.parameter_space(1).entries]
    moving: set[str] = set()
    require(layers, "No layers are named, so nothing would be trained; name some, or '*' for all.")
    for pattern in layers:
        matched = {name for name in names if fnmatch(name, pattern) or fnmatch(plain_name(name), pattern)}
        says = f"No trained weight of the network matches the layers {pattern!r}: {nearest(pattern, names)}"
        require(matched, says)
        moving |= matched
    others = {name for name, _ in task.module.named_parameters()} - moving
    return ParameterSpace(task.module, exclude=others)


class _Tuning:
    """Fine-tuning of one client's weights from those of a state."""

    def __init__(self, state: ModelState, client: int) -> None:
        self._state, self._client = state, client

    def train(
        self, data: Dataset, space: ParameterSpace, how: LocalSettings, trained: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The weights of ``space`` as they have moved, by name."""
        batches: list[Tensor] = []
        for epoch in range(how.epochs):
            order = torch.arange(len(data))
            if len(data) > how.batch_size:  # one step of all examples needs no order
                rng = generator(self._state.seed, "personal shuffle", epoch, self._client)
                order = torch.from_numpy(rng.permutation(len(data)))
            batches += torch.split(order, how.batch_size)
        names = [entry.name for entry in space.entries]
        start = torch.cat([trained[name].detach().reshape(-1) for name in names])
        fixed = {name: value.detach() for name, value in trained.items() if name not in names}
        local = LocalSGD(lambda: start, how.sgd, how.weight_decay, len(batches), final=True)

        def loss(
            task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
        ) -> Tensor:
            return task.loss({**fixed, **w}, psi, batch, noise)

        def at(step: int, batch: Batch, noise: Noise) -> Gradients:
            point = Point(space, local.values)
            return gradients(self._state.task, loss, _FULL, point, self._state.psi, batch, noise)

        for result, _ in visited(self._noisy(data, "personal training", batches), at, local):
            self.check(result.loss.item())
        return space.tensors(local.values)

    def scores(self, w: Mapping[str, Tensor], data: Dataset, samples: int | None) -> dict[str, float]:
        """Of a network on the held-out examples; the noise is the same for every network."""
        task = self._state.task.with_samples(samples)
        batches = torch.split(torch.arange(len(data)), rows_at_once(self._state.w.device, task.samples))
        held = score(task, w, self._state.psi, self._noisy(data, "personal scores", batches))
        scores = {"nll": held.nll / held.examples}
        return scores if held.correct is None else {**scores, "accuracy": held.correct / held.examples}

    def check(self, loss: float) -> None:
        """Refuse a loss that is not finite."""
        if not math.isfinite(loss):
            fault = f"The loss of client {self._client} is {loss} while its network is fine-tuned"
            raise ClientError(f"{fault}; lower the learning rate.")

    def _noisy(self, data: Dataset, purpose: str, batches: Sequence[Tensor]) -> Iterator[tuple[Batch, Noise]]:
        """The examples at the places of each batch, each batch with its noise."""
        key = NoiseKey(self._state.seed, purpose, (self._client,))
        return noisy_batches(data, batches, key, self._state.w.device, self._state.task.dtype)
