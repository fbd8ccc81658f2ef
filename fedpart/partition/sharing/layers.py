"""Which layers of networks have composed weights, and which of these belong together."""

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatch
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpart.checks import is_list

_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def weight_layers(
    networks: Sequence[nn.Module], keep: Sequence[str], plain: Collection[str], first: bool = True
) -> list[list[str]]:
    """Of each network the Linear and Conv layers whose weights are composed: trained weights of their own,
    not of the last layer (the classifier), of the ``first`` if that is False, to ``keep``, or ``plain``."""
    every = [
        {name: layer for name, layer in network.named_modules() if isinstance(layer, _KINDS)}
        for network in networks
    ]
    check_patterns("keep", keep, every)
    composed = []
    for index, (network, layers) in enumerate(zip(networks, every, strict=True)):
        uses = [id(p) for _, p in network.named_parameters(remove_duplicate=False)]
        composed.append([
            name
            for name in [*layers][0 if first else 1 : -1]
            if name
            and isinstance(weight := layers[name]._parameters.get("weight"), nn.Parameter)
            and weight.requires_grad
            and uses.count(id(weight)) == 1
            and f"{name}.weight" not in plain
            and not any(matches(pattern, index, name) for pattern in keep)
        ])  # fmt: skip
    return composed


def matches(pattern: str, index: int, layer: str) -> bool:
    """Whether a pattern is for a layer of a network: by its name, or with the network's number before it."""
    return fnmatch(layer, pattern) or fnmatch(f"{index}:{layer}", pattern)


def check_patterns(option: str, patterns: Any, networks: Sequence[Collection[str]]) -> None:
    """Refuse what is no list of patterns, and a pattern of the ``option`` that matches no layer."""
    if not is_list(patterns) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f"{option} has lists of names of layers, such as [conv1, fc*], got {patterns!r}.")
    for pattern in patterns:
        if not any(matches(pattern, index, name) for index, names in enumerate(networks) for name in names):
            known = ", ".join(dict.fromkeys(name for names in networks for name in names))
            raise ValueError(f"No Linear or Conv layer matches {pattern!r} of {option}; they are {known}.")


def weight_of(network: nn.Module, layer: str) -> nn.Parameter:
    """The plain weight of a layer."""
    weight = network.get_submodule(layer).weight
    if not isinstance(weight, nn.Parameter):
        raise TypeError(f"The weight of {layer!r} is no parameter.")
    return weight


def key(layer: str) -> str:
    """The name of a layer as nn.ModuleDict takes it."""
    return layer.replace(".", "/")


def orthogonal(rows: int, columns: int, stream: np.random.Generator) -> Tensor:
    """``[rows, columns]`` float64: orthonormal rows, or columns where there are fewer."""
    drawn = torch.from_numpy(stream.standard_normal((max(rows, columns), min(rows, columns))))
    q, r = torch.linalg.qr(drawn)
    basis: Tensor = q * r.diagonal().sign()
    return (basis if rows >= columns else basis.t()).contiguous()


Shape = tuple[int, ...]
"""``[out, in, *kernel]`` of a weight."""


def chains(shapes: Iterable[Shape]) -> list[list[Shape]]:
    """Different shapes, ascending, in as few chains as a greedy pass finds, each inside of the next one."""
    nested: list[list[Shape]] = []
    for shape in sorted(set(shapes), key=lambda sizes: (prod(sizes), sizes)):
        fitting = (
            chain
            for chain in nested
            if chain[-1][2:] == shape[2:] and all(a <= b for a, b in zip(chain[-1], shape, strict=True))
        )
        if (chain := next(fitting, None)) is None:
            nested.append([shape])
        else:
            chain.append(shape)
    return nested


def assembled(blocks: Sequence[Tensor], chain: Sequence[Shape]) -> Tensor:
    """The weight of the shape ``chain[len(blocks) - 1]``; a block has the further inputs of the units before,
    and then the further units."""
    weight = blocks[0].view(chain[0])
    for block, (before, shape) in zip(blocks[1:], pairwise(chain), strict=False):
        kernel = shape[2:]
        if split := before[0] * (shape[1] - before[1]) * prod(kernel):
            weight = torch.cat([weight, block[:split].view(before[0], -1, *kernel)], 1)
        if shape[0] > before[0]:
            weight = torch.cat([weight, block[split:].view(-1, *shape[1:])], 0)
    return weight


def cut(weight: Tensor, chain: Sequence[Shape]) -> list[Tensor]:
    """Inverse of :func:`assembled`: the blocks of a weight whose shape is in the chain."""
    blocks = [weight[tuple(map(slice, chain[0]))].reshape(-1)]
    for before, shape in pairwise(chain[: chain.index(tuple(weight.shape)) + 1]):
        more_inputs = weight[: before[0], before[1] : shape[1]].reshape(-1)
        blocks.append(torch.cat([more_inputs, weight[before[0] : shape[0], : shape[1]].reshape(-1)]))
    return blocks
