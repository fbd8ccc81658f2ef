"""Which layers share, learned from the gradients of their weights: the clusters of SuperWeight Networks.

"SuperWeight Ensembles" (WACV 2024), its supplement's section 2. Its second stage, which layers of a cluster
have their coefficients in common, is left out.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain, combinations
from math import isnan
from typing import TypeVar

import torch
from torch import Tensor

from fedpart.partition.sharing.bank import SuperWeight
from fedpart.partition.sharing.composed import Composed

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
