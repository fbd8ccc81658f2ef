"""BatchEnsemble: one weight, and for each member a matrix of rank one (Wen et al. 2020)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fedpart.nn.models.ensembles.ensemble import (
    ENSEMBLES,
    NORMS,
    BuildMember,
    Ensemble,
    Member,
    equal,
    layers_of,
    share,
)


class RankOne(nn.Module):
    """A weight ``[outputs, inputs, ...]`` times ``s r^T``: a layer's inputs times r, its outputs times s.

    r and s start as random signs.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.outputs = nn.Parameter(2.0 * torch.randint(2, (shape[0],)) - 1)  # s
        self.inputs = nn.Parameter(2.0 * torch.randint(2, (shape[1],)) - 1)  # r

    def forward(self, weight: Tensor) -> Tensor:
        """The member's weight."""
        rest = [1] * (weight.ndim - 2)
        return weight * self.outputs.view(-1, 1, *rest) * self.inputs.view(1, -1, *rest)


def batch_ensemble(members: Sequence[nn.Module], own_norms: bool = False) -> Ensemble:
    """Members that share all parameters of the first; each multiplies every weight by a matrix of rank one.

    Each convolution and linear layer has ``M (inputs + outputs)`` numbers more than in one network. All
    members see the same images: a batch is not divided among them. Members are networks of one architecture,
    which are changed. With ``own_norms`` each keeps the scales and biases of its norms, and the biases of its
    layers.
    """
    layers: list[dict[str, Any]] = [layers_of(member) for member in members]
    if any(of_member.keys() != layers[0].keys() for of_member in layers):
        raise ValueError(
            "The members of a batch ensemble have one architecture, but the layers of two differ."
        )
    for number, of_member in enumerate(layers):
        for path, layer in of_member.items():
            weighted = isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd))
            apart = own_norms and (weighted or isinstance(layer, NORMS))
            first = layers[0][path]
            if number:
                for name, parameter in first.named_parameters(recurse=False):
                    if not (apart or (weighted and name == "weight")):
                        share(layer, name, parameter)
            if weighted:
                parametrize.register_parametrization(layer, "weight", RankOne(layer.weight.shape))
                if number:
                    original = first.parametrizations.weight.original
                    share(layer.parametrizations.weight, "original", original)
    return Ensemble(members)


@ENSEMBLES.register("batch")
def batch(build: BuildMember, members: Sequence[Member], own_norms: bool = False) -> Ensemble:
    """:func:`batch_ensemble` of members that are described."""
    member = equal("batch", members)
    return batch_ensemble([build(member) for _ in members], own_norms)
