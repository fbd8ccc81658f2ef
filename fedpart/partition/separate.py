"""Whole networks as partitions: one (plain learning), or C beside each other."""

import torch
from torch import Tensor

from fedpart.partition.partition import Partition
from fedpart.partition.space import ParameterSpace


class SeparateNetworks(Partition):
    """C = ``count`` networks: w_k is network k, and subnetwork k that network alone (Section 5, Figure 3)."""

    def __init__(self, space: ParameterSpace, count: int = 1) -> None:
        bounds = tuple(k * space.size for k in range(count + 1))
        super().__init__(space, bounds, torch.ones(space.size, dtype=torch.uint8), space.initial())

    def initial(self) -> Tensor:
        return self.space.initial().repeat(self.chunks)

    def subnetwork(self, w: Tensor, k: int) -> Tensor:
        return self.default.to(w) if k == 0 else w[self.slice(k)]

    def take(self, own: Tensor, j: int, k: int) -> Tensor:
        return own

    def put(self, own: Tensor, j: int, k: int, w_j: Tensor) -> Tensor:
        return w_j
