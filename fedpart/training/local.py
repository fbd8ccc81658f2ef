"""How a client trains: the settings of its steps, SGD, and what is added to its gradients."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.partition.partition import Partition
from fedpart.randomness.noise import Noise
from fedpart.task.gradients import Gradients
from fedpart.task.task import Batch
from fedpart.training.optimisers import DecaySettings, SGDSettings, SlicedOptimiser
from fedpart.training.settings import documented, setting


@documented
@dataclass(frozen=True)
class LocalSettings(DecaySettings):
    """How a client trains: torch's SGD on its shard, from the server's values in every round.

    Learning rate, batch size and epochs are App. J.2's for MNIST: 5e-2, 64, 1."""

    learning_rate: float = setting(5e-2, "of local SGD", gt=0)
    batch_size: int = setting(64, "examples per local step", ge=1)
    epochs: int = setting(1, "passes over the shard per round", ge=1)
    momentum: float = setting(0.0, "of local SGD, anew in every round and for every partition", ge=0, lt=1)
    psi_batch: Literal["shard"] | int = setting(
        "shard",
        "examples behind a client's psi gradient: the whole shard (the paper's MNIST), or a number drawn at "
        "random (its CIFAR-10: one batch)",
    )

    cosine_rounds: int | None = setting(
        None, "rounds over which the learning rate falls to a hundredth, by a cosine; null: it stays", ge=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        size: Any = self.psi_batch
        if not (size == "shard" if isinstance(size, str) else type(size) is int and size >= 1):
            raise ValueError(f"psi_batch is 'shard' or a number of examples, got {self.psi_batch!r}.")

    @cached_property
    def sgd(self) -> SGDSettings:
        """The optimiser of a client's steps."""
        return SGDSettings(self.learning_rate, self.momentum)

    def at(self, round: int, factor: float = 1.0) -> "LocalSettings":
        """As they are in ``round`` (1..), at ``factor`` times the rate."""
        rate = factor * self.learning_rate
        if self.cosine_rounds is not None:
            done = min(1.0, (round - 1) / self.cosine_rounds)
            rate = (0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2) * rate
        return replace(self, learning_rate=rate, cosine_rounds=None)

    def length(self, examples: int) -> float:
        """Sum of the rates with which a client's gradients count in its change, the first ones with all their
        momentum: ``learning_rate |a|_1`` of Wang et al. 2020, Section 4.1; of a client of so many examples.
        """
        steps = self.epochs * -(-examples // self.batch_size)
        if not self.momentum:
            return self.learning_rate * steps
        lost = self.momentum * (1 - self.momentum**steps) / (1 - self.momentum)
        return self.learning_rate * (steps - lost) / (1 - self.momentum)


class Correction(NamedTuple):
    """What is added to every gradient of a client's steps: ``pull * (w - w_start) + shift``.

    ``shift [..., n]``: as the vector that is stepped; None: nothing. ``turns``: in a first share of the
    steps only the head moves, True in ``[..., n]``, and then only the rest; None: all moves."""

    pull: float = 0.0
    shift: Tensor | None = None
    turns: tuple[Tensor, float] | None = None


class LocalSGD:
    """SGD on a client: some steps from the server's values of a vector, ``origin()``, anew in every round.

    What is stepped is the change itself, which is small: a difference of final and first values would be
    rounded as they are. ``final`` says whether ``values`` are of interest after the last of the ``steps``.
    """

    correction: Correction | None = None

    def __init__(
        self, origin: Callable[[], Tensor], settings: SGDSettings, weight_decay: float, steps: int,
        final: bool = False,
    ) -> None:  # fmt: skip
        self._take, self._decay, self._rate = origin, weight_decay, settings.learning_rate
        self._sgd: SlicedOptimiser | None = None
        self._steps = self._left = steps
        if steps > 1 or final:
            self._change = torch.zeros_like(self.values)
            self._sgd = SlicedOptimiser(self._change.view(-1), [slice(None)], settings)

    @cached_property
    def values(self) -> Tensor:
        """After the steps so far; the server's where only one will follow, unless ``final``."""
        return self._origin

    @cached_property
    def _origin(self) -> Tensor:
        return self._take()

    def gradient(self, gradient: Tensor) -> Tensor:
        """``gradient``, in place, with what is added to it."""
        if self._decay:
            gradient = gradient.add_(self.values, alpha=self._decay)
        if self.correction is not None:
            pull, shift, _ = self.correction
            gradient = gradient if shift is None else gradient.add_(shift)
            if pull and self._sgd is not None:  # a single step begins where it is pulled to
                gradient = gradient.add_(self._change, alpha=pull)
        return gradient

    def step(self, gradient: Tensor) -> None:
        """One step along a gradient, which is used up."""
        gradient = self.gradient(gradient)
        if self._sgd is None:  # torch's only step, whose momentum begins with the second
            self._change = gradient.mul_(-self._rate)
        else:
            if self.correction is not None and self.correction.turns is not None:
                head, share = self.correction.turns
                done, first = self._steps - self._left, round(share * self._steps)
                self._left -= 1
                if done == first:
                    self._sgd.load_state_dict([{}])  # its momentum is of what has moved
                gradient = gradient * (head if done < first else ~head)
            self._sgd.step(0, gradient.reshape(-1))
            self.values = self._origin + self._change

    def move_to(self, values: Tensor) -> None:
        """Go there without a step of SGD; only with ``final``."""
        self.values, self._change = values, values - self._origin

    def change(self) -> Tensor:
        """What all steps have added to the vector."""
        return self._change


class PartSGD(LocalSGD):
    """SGD on w_j of subnetworks w_s^(k), ``start [..., n]``, of which nothing else moves."""

    def __init__(
        self, partition: Partition, start: Tensor, j: int, k: int, settings: SGDSettings, weight_decay: float,
        steps: int, final: bool = False,
    ) -> None:  # fmt: skip
        self._partition, self._start, self._which = partition, start, (j, k)
        super().__init__(partial(partition.take, start, j, k), settings, weight_decay, steps, final)

    @property
    def theta(self) -> Tensor:
        """The subnetworks after the steps so far, ``[..., n]``."""
        return self._partition.put(self._start, *self._which, self.values)

    def gradient(self, gradient: Tensor) -> Tensor:
        """A gradient of the subnetworks, ``[..., n]``, as it is stepped along."""
        return super().gradient(self._partition.take(gradient, *self._which))


GradientsAt = Callable[[int, Batch, Noise], Gradients]
Visits = Iterator[tuple[Gradients, int]]
ClientLoop = Callable[[Iterable[tuple[Batch, Noise]], GradientsAt, LocalSGD | None], Visits]


def visited(
    batches: Iterable[tuple[Batch, Noise]], gradients_at: GradientsAt, sgd: LocalSGD | None
) -> Visits:
    """The loop of a client: a step along each batch's gradient of the weights, if anything is trained; yields
    the gradients, and of how many examples they are."""
    for step, (batch, noise) in enumerate(batches):
        result = gradients_at(step, batch, noise)
        if sgd is not None and result.theta is not None:
            sgd.step(result.theta)
        yield result, batch.examples


TrainFn = Callable[[Tensor, Iterable[Any], Callable[[Any], Tensor]], object]
"""``train_fn(weights, batches, loss)``: what a client does with the weights that it trains in a round.

It moves ``weights [n]`` in place, as optimisers of ``torch.optim`` do. They are those of one partition, at
the server's values, and require gradients. ``batches`` are as ``local.batch_size`` and ``local.epochs`` say,
in an order drawn anew in every round. ``loss(batch)`` is a scalar in nats per example, of the subnetwork with
the weights as they are then, under the server's psi. Weight decay and FedProx's pull are in its gradient
alone. It has to be asked for once at least.
"""


def own_steps(
    train: TrainFn, batches: Iterable[tuple[Batch, Noise]], gradients_at: GradientsAt, sgd: LocalSGD | None
) -> Visits:
    """A client's loop by its own function, where anything is trained; see :func:`visited`."""
    if sgd is None:
        yield from visited(batches, gradients_at, sgd)
        return
    weights, results = sgd.values.detach().clone().requires_grad_(), list[tuple[Gradients, int]]()

    def loss(of: tuple[Batch, Noise]) -> Tensor:
        batch, noise = of
        sgd.move_to(weights.detach())
        result = gradients_at(1, batch, noise)
        assert result.theta is not None
        gradient = sgd.gradient(result.theta)
        results.append((result._replace(theta=None), batch.examples))  # of which none is kept
        told: Tensor = result.loss + torch.sum((weights - weights.detach()) * gradient)
        return told

    returned = train(weights, batches, loss)
    remedy = "copy yours into them"
    require(returned is None, f"train_fn moves the weights in place and returns nothing; {remedy}.")
    require(results, "train_fn has not called loss(batch), so that nothing is known of the client's loss.")
    sgd.move_to(weights.detach())
    yield from results


def check_own_steps(settings: Any, held_out: float) -> None:
    """Refuse a client's own training step where how clients are combined, or tuned, follows from SGD's; of
    the federation's settings, and the share that the method holds out."""
    ways = settings.combination
    of_sgd = ways.keeps or ways.sees or ways.head_epochs or held_out
    several = settings.architectures is not None
    why = "with networks of several sizes" if several else f"with the method {settings.method!r}"
    instead = "take another method, FedAvg's or a partitioned one, or leave train_fn out."
    require(not (of_sgd or several), f"A train_fn takes SGD's place, {why} there is no other; {instead}")
