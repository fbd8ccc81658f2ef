"""Gradients of layers' weights on a data set, in inference."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedpart.data.dataset import Dataset
from fedpart.nn.likelihoods import Likelihood
from fedpart.randomness.noise import Noise
from fedpart.task.gradients import Job, Point, gradients
from fedpart.task.task import Batch, Task
from fedpart.training.state import rows_at_once


def gradients_of_weights(
    network: nn.Module,
    layers: Sequence[str],
    dataset: Dataset,
    likelihood: str | Likelihood = "classification",
    precision: str = "fp32",
) -> dict[str, Tensor]:
    """Of the sum of losses over the examples, by layer; neither transforms nor dropout draw anything.

    Args:
        network: plain; on the CPU, as the examples are brought there.
        layers: whose ``weight`` is meant.
        dataset: at least one example.
        likelihood: of the network's outputs.
        precision: see :class:`.Task`.
    """
    task = Task(network, samples=1, likelihood=likelihood, precision=precision)
    space, psi = task.parameter_space(1), task.psi_space.initial()
    point, total = Point(space, space.initial()), torch.zeros(space.size, dtype=task.dtype)
    size = rows_at_once(total.device, 1)
    for start in range(0, len(dataset), size):
        batch = Batch(*dataset.batch(slice(start, start + size), total.device))
        mean = gradients(task, _at_rest, Job(subnetwork=1, partition=1), point, psi, batch, None).theta
        assert mean is not None
        total += batch.examples * mean
    named = space.tensors(total)
    return {name: named[f"{name}.weight"] for name in layers}


def _at_rest(
    task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
) -> Tensor:
    """The loss in inference."""
    return task.loss(w, psi, batch, noise, dropout=False)
