"""Training by a differentiable estimate of the marginal likelihood (Immer et al. 2022, App. D here)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from fedpart.checks import require
from fedpart.data.dataset import Dataset
from fedpart.methods.base import METHODS, CentralMethod, Schedule, Shares
from fedpart.methods.evidence.estimate import Draws, Estimate, Own
from fedpart.methods.evidence.estimates import Kfac, LastLayer
from fedpart.partition.partition import Partition
from fedpart.partition.space import ParameterSpace
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.randomness.streams import generator
from fedpart.task.gradients import Job, Step
from fedpart.task.task import Batch, Task
from fedpart.training.settings import RunSettings
from fedpart.training.state import ModelState

ESTIMATES: dict[str, type[Estimate]] = {"kfac": Kfac, "last_layer": LastLayer}
OWN = "evidence"  # the transform that holds the estimate's own hyperparameters, first of psi


@METHODS.register("laplace")
class Laplace(CentralMethod):
    """One network on all data; epochs end with a step of psi along an estimate of log p(D | psi).

    An epoch has as many iterations as it takes to draw each example once, on average. Weights are trained as
    usual, with 1/N of the estimate's prior in the loss. After the burn-in every epoch ends with: the
    estimate's sums over all data; some Adam steps on its own hyperparameters (prior precisions), on a
    logarithmic scale; one Adam step on psi. Both have ``optimiser_psi``. ``keep_best`` keeps the best report.

    Args:
        evidence: ``kfac``: Laplace's approximation with Kronecker factors, see :class:`.Kfac`;
            ``last_layer``: Bayesian linear regression on the last layer's inputs, see :class:`.LastLayer`.
        burn_in: epochs before the first step of psi, 0 or more.
        precision_steps: steps on the estimate's own hyperparameters in an epoch, 0 or more.
        batches: at most so many are differentiated by psi in an epoch, drawn without replacement.
        batch: examples in each.
        final_rate: psi's last learning rate over its first, between which it follows a cosine over epochs.

    Raises:
        ValueError: an option that is none of these.
    """

    estimates = True

    def __init__(
        self, evidence: Literal["kfac", "last_layer"] = "kfac", burn_in: int = 10, precision_steps: int = 4,
        batches: int = 100, batch: int = 25, final_rate: float = 0.1,
    ) -> None:  # fmt: skip
        require(evidence in ESTIMATES, f"The method's evidence is kfac or last_layer, got {evidence!r}.")
        whole = {"burn_in": (burn_in, 0), "precision_steps": (precision_steps, 0)}
        for name, (value, least) in {**whole, "batches": (batches, 1), "batch": (batch, 1)}.items():
            says = f"The method's {name} is a whole number, {least} or more, got {value!r}."
            require(type(value) is int and value >= least, says)
        require(0 < final_rate <= 1, f"The method's final_rate is above 0 and at most 1, got {final_rate!r}.")
        self.kind, self.burn_in, self.precision_steps = ESTIMATES[evidence], burn_in, precision_steps
        self.batches, self.batch, self.final_rate = batches, batch, final_rate

    def prepare(self, task: Task) -> Task:
        taken = f"The name {OWN!r} is the method's own; give that transform another one."
        require(OWN not in task.transforms, taken)
        task = task.replace(transforms={OWN: Own(self.kind(task).own), **task.transforms})
        self.estimate = self.kind(task)
        return task

    def proportions(self, chunks: Sequence[float]) -> tuple[float, ...]:
        return (1.0,)

    def partition(
        self, task: Task, chunks: Shares, settings: RunSettings, space: ParameterSpace | None = None
    ) -> Partition:
        fault = "The method laplace learns the prior of the weights"
        remedy = "set weight_decay to 0"
        require(self.kind is not Kfac or not getattr(settings, "weight_decay", None), f"{fault}; {remedy}.")
        return super().partition(task, chunks, settings, space)

    def psi_slices(self, task: Task) -> list[slice]:
        count = len(self.estimate.own)
        return [slice(count), slice(count, None)]

    def stages(self, iterations: int, examples: int, batch_size: int) -> dict[str, int]:
        self.examples, self.epoch, self.last = examples, math.ceil(examples / batch_size), iterations
        burnt_in = self.burn_in * self.epoch
        require(
            burnt_in + self.epoch <= iterations,
            f"psi is stepped at the ends of epochs after a burn-in of {self.burn_in}, first at iteration "
            f"{burnt_in + self.epoch} of {iterations}; train for longer, or lower burn_in.",
        )
        return {"burnt in": burnt_in, "trained": iterations}

    def steps(self, schedule: Schedule, iteration: int, rng: np.random.Generator) -> list[Step]:
        return [Step(Job(subnetwork=1, partition=1), 1, 1)]

    def loss(
        self, task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
    ) -> Tensor:
        prior = self.estimate.penalty(w, self._own(psi))
        return task.loss(w, psi, batch, noise) + prior / self.examples

    def evidence(self, state: ModelState, data: Dataset) -> float:
        total = self.estimate.total(state.tensors(), state.psi, self._draws(state, data))
        return self.estimate.value(total, self._own(state.psi)).item()

    def finish(self, state: ModelState, data: Dataset) -> None:
        epochs, left = divmod(state.completed, self.epoch)
        if left or epochs <= self.burn_in:
            return
        total = self.estimate.total(state.tensors(), state.psi, self._draws(state, data))
        for _ in range(self.precision_steps):
            state.optimiser_psi.step(0, -self.estimate.own_gradient(total, self._own(state.psi)))
        precisions = self._own(state.psi)
        if len(precisions) == len(state.psi):
            return
        some = self._draws(state, data, self.batches)
        gradient = self.estimate.gradient(total, state.psi, precisions, some)
        require(gradient.isfinite().all(), f"the gradient of the evidence is not finite; {self.remedy}")
        state.optimiser_psi.step(1, -gradient[len(precisions) :], self._rate(epochs))

    def _rate(self, epochs: int) -> float:
        """Learning rate of psi's step after so many epochs, over the first: a cosine to the last epoch."""
        steps = self.last // self.epoch - self.burn_in
        done = (epochs - self.burn_in - 1) / max(1, steps - 1)
        return self.final_rate + (1 - self.final_rate) * (1 + math.cos(math.pi * done)) / 2

    def _own(self, psi: Tensor) -> Tensor:
        return psi[: len(self.estimate.own)].detach()

    def _draws(self, state: ModelState, data: Dataset, at_most: int | None = None) -> Draws:
        """Batches of the data in their order, or a random part of them; each has the same noise in both."""
        places = list(range(0, len(data), self.batch))
        if at_most is not None and at_most < len(places):
            rng = generator(state.seed, "evidence batches", state.completed)
            places = sorted(rng.permutation(places)[:at_most].tolist())

        def batches() -> Iterator[tuple[Batch, NoiseKey]]:
            for start in places:
                key = NoiseKey(state.seed, "evidence", (state.completed, start // self.batch))
                yield Batch(*data.batch(slice(start, start + self.batch))).to(state.w.device), key

        return batches
