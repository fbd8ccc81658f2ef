"""SGD on a client: its steps from the server's values, and what is added to their gradients."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedpart.partition.partition import Partition
from fedpart.training.optimisers import SGDSettings, SlicedOptimiser


class Correction(NamedTuple):
    """What is added to every gradient of a client's steps: ``pull * (w - w_start) + shift``.

    ``shift [..., n]``: as the vector that is stepped; None: nothing. ``turns``: in a first share of the
    steps only the head moves, True in ``[..., n]``, and then only the rest; None: all moves.
    """

    pull: float = 0.0
    shift: Tensor | None = None
    turns: tuple[Tensor, float] | None = None


class LocalSGD:
    """SGD on a client: some steps from the server's values of a vector, ``origin()``, anew in every round.

    What is stepped is the change itself, which is small: a difference of final and first values would be
    rounded as they are. ``final`` says whether ``values`` are of interest after the last of the ``steps``.
    """

    correction = Correction()

    def __init__(
        self,
        origin: Callable[[], Tensor],
        settings: SGDSettings,
        weight_decay: float,
        steps: int,
        final: bool = False,
    ) -> None:
        self._take, self._decay, self._rate = origin, weight_decay, settings.learning_rate
        self._sgd: SlicedOptimiser | None = None
        self._steps, self._left = steps, steps
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
        pull, shift, _ = self.correction
        if shift is not None:
            gradient = gradient.add_(shift)
        if pull and self._sgd is not None:  # a single step begins where it is pulled to
            gradient = gradient.add_(self._change, alpha=pull)
        return gradient

    def step(self, gradient: Tensor) -> None:
        """One step along a gradient, which is used up."""
        gradient = self.gradient(gradient)
        if self._sgd is None:  # torch's only step, whose momentum begins with the second
            self._change = gradient.mul_(-self._rate)
        else:
            if (turns := self.correction.turns) is not None:
                gradient = self._in_turn(gradient, *turns)
            self._sgd.step(0, gradient.reshape(-1))
            self.values = self._origin + self._change

    def _in_turn(self, gradient: Tensor, head: Tensor, share: float) -> Tensor:
        done, first = self._steps - self._left, round(share * self._steps)
        self._left -= 1
        if done == first and self._sgd is not None:
            self._sgd.load_state_dict([{}])  # its momentum is of what has moved
        return gradient * (head if done < first else ~head)

    def move_to(self, values: Tensor) -> None:
        """Go there without a step of SGD; only with ``final``."""
        self.values, self._change = values, values - self._origin

    def change(self) -> Tensor:
        """What all steps have added to the vector."""
        return self._change


class PartSGD(LocalSGD):
    """SGD on w_j of subnetworks w_s^(k), ``start [..., n]``, of which nothing else moves."""

    def __init__(
        self,
        partition: Partition,
        start: Tensor,
        j: int,
        k: int,
        settings: SGDSettings,
        weight_decay: float,
        steps: int,
        final: bool = False,
    ) -> None:
        self._partition, self._start, self._which = partition, start, (j, k)
        super().__init__(partial(partition.take, start, j, k), settings, weight_decay, steps, final)

    @property
    def theta(self) -> Tensor:
        """The subnetworks after the steps so far, ``[..., n]``."""
        return self._partition.put(self._start, *self._which, self.values)

    def gradient(self, gradient: Tensor) -> Tensor:
        """A gradient of the subnetworks, ``[..., n]``, as it is stepped along."""
        return super().gradient(self._partition.take(gradient, *self._which))
