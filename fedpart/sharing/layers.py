"""Which layers of networks have composed weights, and which of these belong together."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch

import numpy as np
import torch
from torch import Tensor, nn

_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def weight_layers(network: nn.Module, keep: Sequence[str] = ()) -> list[str]:
    """Names of Linear and Conv layers with a trained weight of their own, in order, but for the last one.

    The last one is taken for the classifier, which no other network shares.

    Args:
        network: whose layers they are.
        keep: patterns of names of layers that are not composed.

    Raises:
        ValueError: a pattern matches no layer.
    """
    every = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, _KINDS)]
    for pattern in keep:
        if not any(fnmatch(name, pattern) for name, _ in every):
            raise ValueError(
                f"No Linear or Conv layer matches {pattern!r} of `keep`; they are "
                f"{', '.join(name for name, _ in every)}."
            )
    uses = [id(p) for _, p in network.named_parameters(remove_duplicate=False)]
    return [
        name
        for name, layer in every[:-1]
        if name
        and isinstance(weight := layer._parameters.get("weight"), nn.Parameter)
        and weight.requires_grad
        and uses.count(id(weight)) == 1
        and not any(fnmatch(name, pattern) for pattern in keep)
    ]


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
