"""Ensembles in one network: BatchEnsemble (Wen et al. 2020), and MIMO (Havasi et al. 2021)."""

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
from fedpart.randomness.noise import order


class RankOne(nn.Module):
    """A weight ``[outputs, inputs, ...]`` times ``s r^T``; r and s start as random signs."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.outputs = nn.Parameter(2.0 * torch.randint(2, (shape[0],)) - 1)  # s
        self.inputs = nn.Parameter(2.0 * torch.randint(2, (shape[1],)) - 1)  # r

    def forward(self, weight: Tensor) -> Tensor:
        rest = [1] * (weight.ndim - 2)
        return weight * self.outputs.view(-1, 1, *rest) * self.inputs.view(1, -1, *rest)


def batch_ensemble(members: Sequence[nn.Module], own_norms: bool = False) -> Ensemble:
    """Members of one architecture, changed to share all parameters of the first; each multiplies every weight
    by a matrix of rank one, ``M (inputs + outputs)`` numbers more. All see the same images. With
    ``own_norms`` each keeps the scales and biases of its norms, and the biases of its layers."""
    ensemble = Ensemble(members)
    layers: list[dict[str, Any]] = [layers_of(member) for member in members]
    if any(of_member.keys() != layers[0].keys() for of_member in layers):
        raise ValueError("Members of a batch ensemble have one architecture, but the layers of two differ.")
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
    return ensemble


@ENSEMBLES.register("batch")
def batch(build: BuildMember, members: Sequence[Member], own_norms: bool = False) -> Ensemble:
    """:func:`batch_ensemble` of members that are described."""
    member = equal("batch", members)
    return batch_ensemble([build(member) for _ in members], own_norms)


class Mimo(Ensemble):
    """Members that are subnetworks of one network, each with an input and an output of its own.

    The network takes ``[B, M channels, ...]``, and returns ``[B, M K]``. In training a row of its input has M
    images of the batch, by random permutations, and the outputs are put back in the order of the images.
    Otherwise it has M times the same image."""

    def __init__(self, network: nn.Module, members: int) -> None:
        super().__init__([network])
        self.count = members

    @property
    def ties_examples(self) -> bool:
        """Whether an example's outputs depend on the others of its batch; the network is not partitioned."""
        return self.count > 1

    def __len__(self) -> int:
        return self.count

    def forward(self, x: Tensor, *, only: Sequence[int] | None = None) -> Tensor:
        places = [order(len(x), x).argsort() for _ in range(self.count - 1)] if self.training else []
        shown = [x, *(x[place] for place in places)] if self.training else [x] * self.count
        outputs = self.members[0](torch.cat(shown, 1))
        each = outputs.view(len(x), self.count, -1).unbind(1)
        if places:
            each = (each[0], *(part[at.argsort()] for part, at in zip(each[1:], places, strict=True)))
        return torch.stack(each if only is None else [each[i] for i in only], 1)


@ENSEMBLES.register("mimo")
def mimo(build: BuildMember, members: Sequence[Member]) -> Mimo:
    """:class:`Mimo` of members that are described."""
    return Mimo(build(equal("mimo", members), len(members)), len(members))
