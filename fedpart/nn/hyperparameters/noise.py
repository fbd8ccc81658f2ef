"""Gaussian noise on the inputs with a learned standard deviation."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedpart.nn.hyperparameters.base import TRANSFORMS, HyperModule
from fedpart.randomness.noise import normal


@TRANSFORMS.register("noise")
class InputNoise(HyperModule):
    """Adds ``std * e``, ``e ~ N(0, 1)`` for every element of every row, to inputs of any shape.

    psi is ``log std``, so the standard deviation stays positive and a step of psi is a step in percent of it.
    The noise is part of the model, as an augmentation is: it is drawn in ``eval()`` too.

    Args:
        std: initial standard deviation, > 0, in the units of the inputs.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("log_std",)
    limits: ClassVar = {"log_std": (math.log(1e-9), math.log(1e9))}

    def __init__(self, std: float = 0.1) -> None:
        super().__init__()
        if not 0 < std < math.inf:
            raise ValueError(
                f"The standard deviation of input noise is positive, got {std}; leave the noise out for 0."
            )
        self.log_std = nn.Parameter(torch.tensor(math.log(std)))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: floating point, ``[rows, ...]``; every element has its own noise."""
        if not x.is_floating_point():
            raise ValueError(
                f"Input noise takes floating-point inputs, got {x.dtype}; put it behind the layer that makes "
                f"numbers of them, such as an embedding."
            )
        return x + (self.log_std.exp() * normal(x.shape, like=self.log_std)).to(x.dtype)

    def physical(self) -> dict[str, float]:
        return {"std": self.log_std.detach().exp().item()}
