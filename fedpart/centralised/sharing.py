"""Which layers of an ensemble share, learned from the gradients of their weights.

"SuperWeight Ensembles" (Teterwak et al., WACV 2024), its supplement's section 2, as the text has it. Its
second stage, which layers of a cluster have their coefficients in common, is left out. The gradients are
those of a whole data set, where the authors' code takes one batch.
"""

from collections.abc import Hashable, Iterable, Mapping
from itertools import chain, combinations
from math import isnan
from typing import TypeVar

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.data.dataset import Dataset
from fedpart.nn.models.ensembles import Ensemble
from fedpart.partition.sharing import Composed
from fedpart.partition.sharing.bank import SuperWeight
from fedpart.training.state import ModelState, rows_at_once

Layer = tuple[int, str]
"""A network's number, and the name of a layer of it."""

Vertex = TypeVar("Vertex", bound=Hashable)


def merged(
    similarities: Mapping[tuple[Vertex, Vertex], float], epsilon: float, layers: Iterable[Vertex] = ()
) -> list[list[Vertex]]:
    """Algorithm 1, as its text means it: layers that a pair above ``epsilon`` (tau) joins are one group. The
    authors' code leaves the rest of a group behind where two groups meet: with (a, b) 0.9, (c, d) 0.8, (b, c)
    0.7 and epsilon 0.5 it gives {a, b, c} and {d}."""
    group = {layer: [layer] for layer in chain(layers, *similarities)}
    order = {layer: place for place, layer in enumerate(group)}
    for (first, second), similarity in similarities.items():
        what = f"The similarity of {first!r} and {second!r}"
        require(not isnan(similarity), f"{what} is not a number; are their gradients finite?")
        if similarity > epsilon and group[first] is not group[second]:
            joining = group[second]
            group[first] += joining
            group |= dict.fromkeys(joining, group[first])
    distinct = {id(members): members for members in group.values()}
    return [sorted(members, key=order.__getitem__) for members in distinct.values()]


def crop_similarity(first: Tensor, second: Tensor) -> float:
    """Cosine of two layers' gradients on their overlapping leading crop, in [-1, 1]; 0 where a crop is 0."""
    shapes = f"{list(first.shape)} and {list(second.shape)}"
    require(
        first.ndim == second.ndim,
        f"The gradients have other numbers of dimensions, {shapes}; compare convolutions with convolutions.",
    )
    shared = tuple(slice(min(lengths)) for lengths in zip(first.shape, second.shape, strict=True))
    a, b = (part[shared].double().flatten() for part in (first, second))
    return torch.nn.functional.cosine_similarity(a, b, 0).clamp(-1, 1).item()


def learned_clusters(state: ModelState, dataset: Dataset, tau: float = 0.1, *, k: int = 1) -> list[list[str]]:
    """Clusters of layers whose weights have similar gradients, as :class:`.Bank` takes them.

    Layers of the largest network that share a bank are merged by :func:`.merged` above ``tau``. A layer of a
    network with the same layers joins its namesake, any other one the most similar layer of its bank.

    Args:
        state: a trained ensemble, composed by :class:`.Bank`; ``clusters: depth`` and ``coupled: true`` are
            what the authors begin with. Another network is a TypeError.
        dataset: on whose sum of losses gradients are taken, e.g. that of the first chunk.
        tau: the cosine above which layers share.
        k: the subnetwork that is asked: the first has seen the first chunk alone.
    """
    gradients = weight_gradients(state, dataset, k)
    banks: dict[Layer, str] = {}  # that a cluster has in common
    for index, member in enumerate(_members(state, k)):
        for name, recipe in member.recipes.items():
            kind = f"{name!r} is composed by {type(recipe).__name__}"
            require(isinstance(recipe, SuperWeight), f"{kind}; use sharing of kind bank.", TypeError)
            banks[index, name] = recipe.banks[0]
    sizes = [0] * (1 + max(index for index, _ in gradients))
    for (index, _), gradient in gradients.items():
        sizes[index] += gradient.numel()
    base = [layer for layer in gradients if layer[0] == sizes.index(max(sizes))]
    joins: dict[Layer, Layer] = {}  # the layer whose cluster each one joins; itself, if there is none
    for index, name in gradients:
        layer = (index, name)
        names = {other for member, other in gradients if member == index}
        near = [other for other in base if banks[other] == banks[layer]]
        if names == {other for _, other in base}:
            near = [other for other in base if other[1] == name]
        similar = {other: crop_similarity(gradients[other], gradients[layer]) for other in near}
        joins[layer] = layer if layer in base else max(similar, key=similar.__getitem__, default=layer)
    base += [layer for layer, other in joins.items() if other == layer and layer not in base]
    similarities = {
        (first, second): crop_similarity(gradients[first], gradients[second])
        for first, second in combinations(base, 2)
        if banks[first] == banks[second]
    }
    groups = merged(similarities, tau, base)
    return [[f"{i}:{name}" for (i, name), other in joins.items() if other in group] for group in groups]


def weight_gradients(state: ModelState, dataset: Dataset, k: int = 1) -> dict[Layer, Tensor]:
    """Gradients of composed weights, by member and layer: of the sum of cross-entropies, in inference.

    A temperature or label smoothing that the ensemble's likelihood may have is left out, and so is autocast.
    """
    gradients: dict[Layer, Tensor] = {}
    size = rows_at_once(state.w.device, 1)
    for index, member in enumerate(_members(state, k)):
        network = member.plain().eval()
        weights = {(index, name): network.get_submodule(name).weight for name in member.recipes}
        for start in range(0, len(dataset), size):
            inputs, targets = dataset.batch(slice(start, start + size), state.w.device)
            loss = torch.nn.functional.cross_entropy(network(inputs), targets, reduction="sum")
            for layer, gradient in zip(weights, torch.autograd.grad(loss, [*weights.values()]), strict=True):
                gradients[layer] = gradients.get(layer, 0) + gradient
    return gradients


def _members(state: ModelState, k: int) -> list[Composed]:
    module = state.module(state.tensors(k))
    members = [*module.members] if isinstance(module, Ensemble) else []
    composed = [member for member in members if isinstance(member, Composed)]
    other = f"The network is a {type(module).__name__} whose members are not composed"
    build = "build it with model: ensemble and kind: composed."
    require(0 < len(members) == len(composed), f"{other}; {build}", TypeError)
    return composed
