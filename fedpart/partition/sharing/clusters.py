"""Which layers share: pairs by the similarity of their gradients, merged to a threshold (Algorithm 1).

"SuperWeight Ensembles" (WACV 2024), its supplement's section 2.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

Layer = TypeVar("Layer", bound=Hashable)


def merged(
    similarities: Mapping[tuple[Layer, Layer], float], epsilon: float, layers: Iterable[Layer] = ()
) -> list[list[Layer]]:
    """Algorithm 1, as its text means it: the most similar pair first, pairs above ``epsilon`` are united.

    That is union-find. The authors' code leaves the rest of a group behind where two groups meet: with (a, b)
    0.9, (c, d) 0.8, (b, c) 0.7 and epsilon 0.5 it gives {a, b, c} and {d}; here they are one group.

    Args:
        similarities: of pairs of layers, in any order; of a pair that is given in both orders the larger.
        epsilon: the threshold (tau of clusters, beta of coefficients).
        layers: all of them, where some are in no pair; they come first in the order of the result.

    Returns:
        Groups of layers, disjoint, each in the order in which ``layers`` and then the pairs name them, and
        ordered by their first one. A layer that is united with none is alone.

    Raises:
        ValueError: a similarity is not a number.
    """
    order = {layer: place for place, layer in enumerate(dict.fromkeys(layers))}
    for pair in similarities:
        for layer in pair:
            order.setdefault(layer, len(order))
    for pair, similarity in similarities.items():
        if similarity != similarity:
            raise ValueError(
                f"The similarity of {pair[0]!r} and {pair[1]!r} is not a number; look for gradients that "
                f"are not finite."
            )
    above = [pair for pair, similarity in similarities.items() if similarity > epsilon]
    above.sort(key=lambda pair: (-similarities[pair], *sorted(order[layer] for layer in pair)))
    parent = {layer: layer for layer in order}

    def root(layer: Layer) -> Layer:
        while parent[layer] != layer:
            parent[layer] = layer = parent[parent[layer]]
        return layer

    for first, second in above:
        one, other = sorted((root(first), root(second)), key=order.__getitem__)
        parent[other] = one
    groups: dict[Layer, list[Layer]] = {}
    for layer in order:
        groups.setdefault(root(layer), []).append(layer)
    return list(groups.values())


def crop_similarity(first: Tensor, second: Tensor) -> float:
    """Cosine of two layers' gradients on their overlapping leading crop, in [-1, 1].

    Args:
        first, second: gradients of generated weights ``[outputs, inputs, ...]``. Of each dimension the
            leading entries that both have count, kernels included.

    Returns:
        The cosine; 0 where one of the crops is 0.

    Raises:
        ValueError: they have different numbers of dimensions.
    """
    if first.ndim != second.ndim:
        raise ValueError(
            f"The gradients have {first.ndim} and {second.ndim} dimensions, {list(first.shape)} and "
            f"{list(second.shape)}; compare convolutions with convolutions."
        )
    shared = tuple(slice(min(lengths)) for lengths in zip(first.shape, second.shape, strict=True))
    one, other = (part[shared].double().flatten() for part in (first, second))
    return torch.nn.functional.cosine_similarity(one, other, 0).clamp(-1, 1).item()
