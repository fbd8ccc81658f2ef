"""Which layers share, learned from the gradients of their weights: both stages of SuperWeight Networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import prod

import torch
from torch import Tensor

from fedpart.partition.sharing.bank import SuperWeight
from fedpart.partition.sharing.blocks import Shape, chains, cut
from fedpart.partition.sharing.clusters import crop_similarity, merged
from fedpart.partition.sharing.composed import Composed

Layer = tuple[int, str]
"""A network's number, and the name of a layer of it."""

Gradients = Mapping[Layer, Tensor]
"""Of composed weights, by network and layer."""

_STEP = 0.05  # by which tau is lowered where a budget does not suffice


def clusters_of(
    gradients: Gradients, recipes: Mapping[Layer, SuperWeight], tau: float = 0.1, budget: int | None = None
) -> list[list[str]]:
    """The first stage: clusters of layers whose weights have similar gradients.

    Layers of the largest network that share a bank now are merged by :func:`.merged`. A layer of a network
    with the same layers joins its namesake, any other one the most similar layer that it shares a bank with;
    those that share a bank with none of the largest network's are merged among themselves.

    Args:
        gradients: of the sum of losses.
        recipes: how the weights are composed now.
        tau: similarities above it unite.
        budget: numbers for all banks; tau is lowered by 0.05 until one template for each bank fits.

    Returns:
        What :class:`.Bank` takes as ``clusters``: names of layers, with the number of their network. Training
        then begins anew.

    Raises:
        ValueError: not even tau = -1 fits the budget.
    """
    banks = {layer: recipe.banks[0] for layer, recipe in recipes.items()}  # that a cluster has in common
    members = range(1 + max(index for index, _ in gradients))
    sizes = [sum(part.numel() for (i, _), part in gradients.items() if i == m) for m in members]
    largest = sizes.index(max(sizes))
    base = [layer for layer in gradients if layer[0] == largest]
    joined = {layer: _counterpart(layer, base, gradients, banks) for layer in gradients}
    base += [layer for layer, other in joined.items() if other == layer and layer not in base]
    similarities = {
        (one, other): crop_similarity(gradients[one], gradients[other])
        for one, other in combinations(base, 2)
        if banks[one] == banks[other]
    }
    while True:
        groups = merged(similarities, tau, base)
        whole = [[layer for layer, one in joined.items() if one in group] for group in groups]
        needed = sum(_one_template(gradients[layer].shape for layer in group) for group in whole)
        if budget is None or needed <= budget:
            return [_names(group) for group in whole]
        if tau < -1:
            raise ValueError(
                f"The budget is {budget:,} numbers, but one template for each bank takes {needed:,} even "
                f"where all layers that shared a bank are one cluster; raise the budget."
            )
        tau -= _STEP


def coupling_of(
    gradients: Gradients,
    recipes: Mapping[Layer, SuperWeight],
    templates: Mapping[str, Tensor],
    beta: float = 0.9,
) -> list[list[str]]:
    """The second stage: layers with the same coefficients keep them together where their gradients agree.

    Args:
        gradients: of the sum of losses.
        recipes: how the weights are composed now, with coefficients that are ``coupled``.
        templates: ``[T, s]`` of each bank.
        beta: similarities of the coefficients' gradients above it unite.

    Returns:
        What :class:`.Bank` takes as ``coupled``, groups of two layers or more. Training then begins anew,
        where the authors' goes on.
    """
    wanted: dict[Layer, Tensor] = {}
    for layer, gradient in gradients.items():
        blocks = zip(recipes[layer].banks, cut(gradient, recipes[layer].chain), strict=True)
        wanted[layer] = torch.cat([templates[bank] @ block for bank, block in blocks])
    similarities = {
        (one, other): crop_similarity(wanted[one], wanted[other])
        for one, other in combinations(wanted, 2)
        if recipes[one].alphas[0] == recipes[other].alphas[0]
    }
    return [_names(group) for group in merged(similarities, beta, wanted) if len(group) > 1]


def recipes_of(networks: Iterable[Composed]) -> dict[Layer, SuperWeight]:
    """The recipes of all layers.

    Raises:
        TypeError: the networks are not composed by a bank.
    """
    found: dict[Layer, SuperWeight] = {}
    for index, network in enumerate(networks):
        for name, recipe in network.recipes.items():
            if not isinstance(recipe, SuperWeight):
                raise TypeError(
                    f"{name!r} is composed by a {type(recipe).__name__}; use sharing of kind bank."
                )
            found[index, name] = recipe
    return found


def _counterpart(
    layer: Layer, base: Sequence[Layer], gradients: Mapping[Layer, Tensor], banks: Mapping[Layer, str]
) -> Layer:
    """The layer of the largest member whose cluster a layer joins; itself, if there is none."""
    index, name = layer
    if layer in base:
        return layer
    same = [one for one in base if banks[one] == banks[layer]]
    names = {other for member, other in gradients if member == index}
    if names == {other for _, other in base}:
        return next(one for one in base if one[1] == name)
    similar = {one: crop_similarity(gradients[one], gradients[layer]) for one in same}
    return max(similar, key=similar.__getitem__, default=layer)


def _one_template(shapes: Iterable[Shape]) -> int:
    """Numbers of a cluster's banks, one template each."""
    return sum(prod(chain[-1]) for chain in chains(tuple(shape) for shape in shapes))


def _names(group: Iterable[Layer]) -> list[str]:
    return [f"{index}:{name}" for index, name in group]
