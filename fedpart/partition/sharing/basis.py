"""FLANC: weights of every width are made of one basis for a layer, and coefficients of that width.

"All-In-One Neural Composition" (Mei et al. 2022) and its authors' code."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil, inf, prod
from typing import Any

import torch
from torch import Tensor, nn

from fedpart.checks import require
from fedpart.partition.sharing.composed import SHARINGS, Composed, Penalised, Recipe, Sharing, Values
from fedpart.partition.sharing.layers import key, orthogonal, weight_layers, weight_of
from fedpart.randomness.streams import generator


class Basis(Penalised):
    """``values [M, R, *kernel]``: M kernels over R inputs, which are kept near to orthonormal."""

    def __init__(self, values: Tensor, strength: float) -> None:
        super().__init__(values)
        self.strength = strength

    def penalty(self, values: Tensor) -> Tensor:
        """``strength`` times the mean squared entry of ``B B^T - I``."""
        rows = values.flatten(1)
        away: Tensor = rows @ rows.t() - torch.eye(len(rows)).to(rows)
        return self.strength * away.square().mean()


@dataclass(frozen=True)
class OfBasis(Recipe):
    """``W[o, g R + q] = sum_m c[o, g M + m] B[m, q]``, cut off where R does not divide the inputs; basis B
    and coefficients ``c [out, G * M]`` have one ``name``, in ``shared`` and in ``own``."""

    name: str
    shape: tuple[int, ...]

    def weight(self, shared: nn.ModuleDict, own: nn.ModuleDict) -> Tensor:
        basis: Any = shared[self.name].values
        combined: Any = own[self.name].values
        (out, inputs), kernel = self.shape[:2], self.shape[2:]
        composed: Tensor = combined.reshape(-1, len(basis)) @ basis.flatten(1)
        return composed.view(out, -1, *kernel)[:, :inputs]


@SHARINGS.register("basis")
class OneBasis(Sharing):
    """FLANC: a basis for each layer, of all widths, which begins orthonormal.

    Coefficients, norms, biases, the first and the last layer, as they are defined, are each width's own.

    Args:
        kernels: M over the widest network's outputs of the layer (the authors' ``n_basis``).
        inputs: R over its inputs (``basis_fraction``).
        penalty: weight in the loss of training, times the mean squared entry of ``B B^T - I`` of each basis.
        keep: patterns of layers that are not composed.
    """

    def __init__(
        self, kernels: float = 1 / 4, inputs: float = 1 / 8, penalty: float = 10.0, keep: Sequence[str] = ()
    ) -> None:
        for name, share in (("kernels", kernels), ("inputs", inputs)):
            require(0 < share <= 1, f"{name} is a share above 0 and at most 1, got {share:g}.")
        require(0 <= penalty < inf, f"The penalty is at least 0, and finite, got {penalty:g}.")
        self.kernels, self.inputs, self.penalty, self.keep = kernels, inputs, penalty, keep

    def compose(
        self, networks: Sequence[nn.Module], seed: int = 0, plain: Collection[str] = ()
    ) -> list[Composed]:
        layers = weight_layers(networks, self.keep, plain, first=False)
        weights = [
            {name: weight_of(network, name).detach() for name in names}
            for network, names in zip(networks, layers, strict=True)
        ]
        users: dict[str, list[Tensor]] = {}
        for of_network in weights:
            for name, weight in of_network.items():
                users.setdefault(_name(name, weight), []).append(weight)
        remedy = "leave sharing out"
        require(users, f"No network has a layer between its first and last: nothing to compose; {remedy}.")
        bases = {
            name: Basis(self._basis(theirs, seed, index), self.penalty)
            for index, (name, theirs) in enumerate(users.items())
        }
        composed = []
        for index, (network, of_network) in enumerate(zip(networks, weights, strict=True)):
            recipes, combined = {}, {}
            for place, (layer, weight) in enumerate(of_network.items()):
                name = _name(layer, weight)
                recipes[layer] = OfBasis(name, tuple(weight.shape))
                values = _combination(weight, bases[name].values.detach(), seed, index, place)
                combined[name] = Values(values)
            composed.append(Composed(network, recipes, {name: bases[name] for name in combined}, combined))
        return composed

    def _basis(self, weights: Sequence[Tensor], seed: int, index: int) -> Tensor:
        """Orthonormal rows (columns, where there are fewer) ``[M, R, *kernel]``."""
        kernel = weights[0].shape[2:]
        rows = max(1, round(self.kernels * max(len(weight) for weight in weights)))
        across = max(1, round(self.inputs * max(weight.shape[1] for weight in weights)))
        drawn = orthogonal(rows, across * prod(kernel), generator(seed, "basis", index))
        return drawn.to(weights[0].dtype).view(rows, across, *kernel)


def _name(layer: str, weight: Tensor) -> str:
    """Of a layer's basis and coefficients: layers of one name and kernel share a basis."""
    return f"{key(layer)}:{'x'.join(map(str, weight.shape[2:]))}"


def _combination(weight: Tensor, basis: Tensor, seed: int, network: int, place: int) -> Tensor:
    """Coefficients ``[out, G * M]`` with which the composed weight is spread as the plain one."""
    groups = ceil(weight.shape[1] / basis.shape[1])
    drawn = generator(seed, "combination", network, place).standard_normal((len(weight), groups * len(basis)))
    spread = weight.square().mean().sqrt() / (basis.square().mean() * len(basis)).sqrt()
    return torch.from_numpy(drawn).to(weight.dtype) * spread.item()
