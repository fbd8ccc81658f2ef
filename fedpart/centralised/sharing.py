"""Which layers of an ensemble share, learned from the gradients of their weights.

"SuperWeight Ensembles" (Teterwak et al., WACV 2024), its supplement's section 2, as the text has it. Its
second stage, which layers of a cluster have their coefficients in common, is left out. The gradients are
those of a whole data set, where the authors' code takes one batch.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain, combinations
from math import isnan
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedpart.checks import require
from fedpart.data.dataset import Dataset
from fedpart.nn.likelihoods import Likelihood
from fedpart.nn.models.ensembles import Ensemble
from fedpart.partition.sharing import Composed
from fedpart.partition.sharing.bank import SuperWeight
from fedpart.task.gradients import Job, Point, gradients
from fedpart.task.task import Batch, Task
from fedpart.training.state import ModelState, rows_at_once

Layer = tuple[int, str]
"""A network's number, and the name of a layer of it."""

Gradients = Mapping[Layer, Tensor]
"""Of composed weights, by network and layer."""

Vertex = TypeVar("Vertex", bound=Hashable)


def merged(
    similarities: Mapping[tuple[Vertex, Vertex], float], epsilon: float, layers: Iterable[Vertex] = ()
) -> list[list[Vertex]]:
    """Algorithm 1, as its text means it: layers that a pair above ``epsilon`` (tau) joins are one group. The
    authors' code leaves the rest of a group behind where two groups meet: with (a, b) 0.9, (c, d) 0.8, (b, c)
    0.7 and epsilon 0.5 it gives {a, b, c} and {d}."""
    order = {layer: n for n, layer in enumerate(dict.fromkeys(chain(layers, *similarities)))}
    group = {layer: [layer] for layer in order}
    for (first, second), similarity in similarities.items():
        if isnan(similarity):
            raise ValueError(
                f"The similarity of {first!r} and {second!r} is not a number; are their gradients finite?"
            )
        if similarity > epsilon and group[first] is not group[second]:
            joining = group[second]
            group[first] += joining
            group |= dict.fromkeys(joining, group[first])
    distinct = {id(members): members for members in group.values()}
    return [sorted(members, key=order.__getitem__) for members in distinct.values()]


def crop_similarity(first: Tensor, second: Tensor) -> float:
    """Cosine of two layers' gradients on their overlapping leading crop, in [-1, 1]; 0 where a crop is 0."""
    if first.ndim != second.ndim:
        raise ValueError(
            f"The gradients have {first.ndim} and {second.ndim} dimensions, {list(first.shape)} and "
            f"{list(second.shape)}; compare convolutions with convolutions."
        )
    shared = tuple(slice(min(lengths)) for lengths in zip(first.shape, second.shape, strict=True))
    a, b = (part[shared].double().flatten() for part in (first, second))
    return torch.nn.functional.cosine_similarity(a, b, 0).clamp(-1, 1).item()


def clusters_of(
    gradients: Gradients, recipes: Mapping[Layer, SuperWeight], tau: float = 0.1
) -> list[list[str]]:
    """Clusters of layers whose weights have similar gradients, of the sum of losses, for :class:`.Bank`.
    Layers of the largest network that share a bank are merged by :func:`.merged` above ``tau``. A layer of a
    network with the same layers joins its namesake, any other one the most similar layer of its bank."""
    banks = {layer: recipe.banks[0] for layer, recipe in recipes.items()}  # that a cluster has in common
    members = range(1 + max(index for index, _ in gradients))
    sizes = [sum(part.numel() for (i, _), part in gradients.items() if i == m) for m in members]
    largest = sizes.index(max(sizes))
    base = [layer for layer in gradients if layer[0] == largest]
    joined = {layer: _counterpart(layer, base, gradients, banks) for layer in gradients}
    base += [layer for layer, other in joined.items() if other == layer and layer not in base]
    similarities = {
        (first, second): crop_similarity(gradients[first], gradients[second])
        for first, second in combinations(base, 2)
        if banks[first] == banks[second]
    }
    whole = (
        [layer for layer, other in joined.items() if other in group]
        for group in merged(similarities, tau, base)
    )
    return [[f"{index}:{name}" for index, name in group] for group in whole]


def recipes_of(networks: Iterable[Composed]) -> dict[Layer, SuperWeight]:
    """The recipes of all layers."""
    recipes: dict[Layer, SuperWeight] = {}
    for index, network in enumerate(networks):
        for name, recipe in network.recipes.items():
            if not isinstance(recipe, SuperWeight):
                raise TypeError(f"{name!r} is composed by {type(recipe).__name__}; use sharing of kind bank.")
            recipes[index, name] = recipe
    return recipes


def _counterpart(
    layer: Layer, base: Sequence[Layer], gradients: Mapping[Layer, Tensor], banks: Mapping[Layer, str]
) -> Layer:
    """The layer of the largest member whose cluster a layer joins; itself, if there is none."""
    index, name = layer
    if layer in base:
        return layer
    same = [other for other in base if banks[other] == banks[layer]]
    names = {other for member, other in gradients if member == index}
    if names == {other for _, other in base}:
        return next(other for other in base if other[1] == name)
    similar = {other: crop_similarity(gradients[other], gradients[layer]) for other in same}
    return max(similar, key=similar.__getitem__, default=layer)


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
