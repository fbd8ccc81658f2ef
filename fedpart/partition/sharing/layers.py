"""Which layers of networks have composed weights, and which of these belong together."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatch
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def weight_layers(
    networks: Sequence[nn.Module], keep: Sequence[str], plain: Collection[str], first: bool = True
) -> list[list[str]]:
    """Of each network the Linear and Conv layers whose weights are composed, as they are defined in it.

    They have a trained weight of their own. The last one is taken for the classifier, and is none of them,
    nor is the ``first`` if that is False, what is to ``keep``, and what has a parameter that stays ``plain``.
    """
    every = [
        {name: layer for name, layer in network.named_modules() if isinstance(layer, _KINDS)}
        for network in networks
    ]
    check_patterns("keep", keep, every)
    found = []
    for index, (network, layers) in enumerate(zip(networks, every, strict=True)):
        uses = [id(p) for _, p in network.named_parameters(remove_duplicate=False)]
        found.append([
            name
            for name in [*layers][0 if first else 1 : -1]
            if name
            and isinstance(weight := layers[name]._parameters.get("weight"), nn.Parameter)
            and weight.requires_grad
            and uses.count(id(weight)) == 1
            and f"{name}.weight" not in plain
            and not any(matches(pattern, index, name) for pattern in keep)
        ])  # fmt: skip
    return found


def matches(pattern: str, index: int, layer: str) -> bool:
    """Whether a pattern is for a layer of a network: by its name, or with the network's number before it."""
    return fnmatch(layer, pattern) or fnmatch(f"{index}:{layer}", pattern)


def check_patterns(option: str, patterns: Any, networks: Sequence[Collection[str]]) -> None:
    """Refuse what is no list of patterns, and a pattern of the ``option`` that matches no layer."""
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f"{option} has lists of names of layers, such as [conv1, fc*], got {patterns!r}.")
    for pattern in patterns:
        if not any(matches(pattern, index, name) for index, names in enumerate(networks) for name in names):
            known = ", ".join(dict.fromkeys(name for names in networks for name in names))
            raise ValueError(f"No Linear or Conv layer matches {pattern!r} of {option}; they are {known}.")


def weight_of(network: nn.Module, layer: str) -> nn.Parameter:
    """The plain weight of a layer."""
    found = network.get_submodule(layer).weight
    if not isinstance(found, nn.Parameter):
        raise TypeError(f"The weight of {layer!r} is no parameter.")
    return found


def key(layer: str) -> str:
    """The name of a layer as nn.ModuleDict takes it."""
    return layer.replace(".", "/")


def orthogonal(rows: int, columns: int, stream: np.random.Generator) -> Tensor:
    """``[rows, columns]`` float64: orthonormal rows, or columns where there are fewer."""
    drawn = torch.from_numpy(stream.standard_normal((max(rows, columns), min(rows, columns))))
    q, r = torch.linalg.qr(drawn)
    found: Tensor = q * r.diagonal().sign()
    return (found if rows >= columns else found.t()).contiguous()
