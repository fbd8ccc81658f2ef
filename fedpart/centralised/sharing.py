"""Which layers of an ensemble share, learned from gradients (SuperWeight Networks, Teterwak et al. 2024).

This follows the authors' text. The gradients are those of a whole data set, where their code takes one batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedpart.checks import require
from fedpart.data.dataset import Dataset
from fedpart.nn.likelihoods import Likelihood
from fedpart.nn.models.ensembles import Ensemble
from fedpart.partition.sharing import Composed
from fedpart.partition.sharing.learned import Layer, clusters_of, recipes_of
from fedpart.task.gradients import Job, Point, gradients
from fedpart.task.task import Batch, Task
from fedpart.training.state import ModelState, rows_at_once


def learned_clusters(state: ModelState, dataset: Dataset, tau: float = 0.1, *, k: int = 1) -> list[list[str]]:
    """Groups of layers that share, see :func:`.clusters_of`.

    Args:
        state: a trained ensemble, composed by :class:`.Bank`; ``clusters: depth`` and ``coupled: true`` are
            what the authors begin with. Another network is a TypeError.
        dataset: on whose sum of losses gradients are taken, e.g. that of the first chunk.
        tau: see :func:`.clusters_of`.
        k: the subnetwork that is asked: the first has seen the first chunk alone.
    """
    return clusters_of(weight_gradients(state, dataset, k), recipes_of(_members(state, k)), tau)


def weight_gradients(state: ModelState, dataset: Dataset, k: int = 1) -> dict[Layer, Tensor]:
    """Gradients of composed weights, by member and layer: of the sum of cross-entropies, in inference.

    A temperature or label smoothing that the ensemble's likelihood may have is left out.
    """
    gradients: dict[Layer, Tensor] = {}
    for index, member in enumerate(_members(state, k)):
        layers, precision = [*member.recipes], state.task.precision
        each = gradients_of_weights(member.plain(), layers, dataset, precision=precision)
        gradients |= {(index, name): gradient for name, gradient in each.items()}
    return gradients


def _members(state: ModelState, k: int) -> list[Composed]:
    module = state.module(state.tensors(k))
    members = [*module.members] if isinstance(module, Ensemble) else []
    composed = [member for member in members if isinstance(member, Composed)]
    other = f"The network is a {type(module).__name__} whose members are not composed"
    build = "build it with model: ensemble and kind: composed."
    require(0 < len(members) == len(composed), f"{other}; {build}", TypeError)
    return composed


def gradients_of_weights(
    network: nn.Module,
    layers: Sequence[str],
    dataset: Dataset,
    likelihood: str | Likelihood = "classification",
    precision: str = "fp32",
) -> dict[str, Tensor]:
    """Of the sum of losses over the examples, of each layer's ``weight``; nothing is drawn.

    The network is plain, and on the CPU; for ``precision`` see :class:`.Task`.
    """
    task = Task(network, samples=1, likelihood=likelihood, precision=precision)
    space, psi = task.parameter_space(1), task.psi_space.initial()
    point, total = Point(space, space.initial()), torch.zeros(space.size, dtype=task.dtype)
    size = rows_at_once(total.device, 1)
    for start in range(0, len(dataset), size):
        batch = Batch(*dataset.batch(slice(start, start + size), total.device))
        mean = gradients(
            task,
            lambda task, job, w, psi, batch, noise: task.loss(w, psi, batch, noise, dropout=False),
            *(Job(subnetwork=1, partition=1), point, psi, batch, None),
        ).theta
        assert mean is not None
        total += batch.examples * mean
    named = space.tensors(total)
    return {name: named[f"{name}.weight"] for name in layers}
