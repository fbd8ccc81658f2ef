"""Concrete (relaxed Bernoulli) dropout with a learned rate (Maddison et al. 2016, Gal et al. 2017)."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedpart.nn.hyperparameters.base import RARE, Bound, HyperModule
from fedpart.nn.hyperparameters.concrete import keep, masked
from fedpart.randomness.noise import coarse_bits, uniform


class ConcreteDropout(HyperModule):
    """Dropout whose mask is a concrete random variable, differentiable in the logit of the drop rate.

    With drop rate ``p = sigmoid(logit)`` and noise ``u ~ U(0, 1)`` the relaxed drop indicator is
    ``z = sigmoid((logit + log u - log(1 - u)) / temperature)`` and the output ``x (1 - z) / (1 - p)``.
    In ``eval()`` it is the identity.

    Args:
        rate: initial drop rate p, in (0, 1); the paper starts at 0.1 (App. J.2).
        temperature: of the relaxation, > 0; the paper does not state it (Gal et al. use 0.1).

    Raises:
        ValueError: a rate outside (0, 1) or a temperature that is not positive.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("logit",)
    fixed = ("temperature",)

    def __init__(self, rate: float = 0.1, temperature: float = 0.1) -> None:
        super().__init__()
        if not 0 < rate < 1:
            raise ValueError(
                f"A drop rate lies strictly between 0 and 1, got {rate}; leave the layer out for 0."
            )
        if not temperature > 0:
            raise ValueError(f"The temperature of concrete dropout is positive, got {temperature}.")
        self.temperature = temperature
        self.logit = nn.Parameter(torch.tensor(math.log(rate / (1 - rate))))

    def bounds(self) -> dict[str, tuple[Bound, Bound]]:
        """Rates from one in a million to 99%."""
        return {"logit": (RARE, math.log(99.0))}

    @property
    def p(self) -> float:
        """The current rate, for code that asks an nn.Dropout for it; nothing is learned through it."""
        return torch.sigmoid(self.logit.detach()).item()

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of any shape ``[B, ...]``; every element has its own mask value."""
        if not self.training:
            return x
        wrapped = any(map(torch._C._functorch.is_functorch_wrapped_tensor, (x, self.logit)))
        bits = None if wrapped else coarse_bits(x.shape)
        if bits is not None:
            return masked(x, bits, self.logit, self.temperature)
        u = uniform(x.shape, like=self.logit, coarse=True)  # in psi's precision, also under autocast
        return x * keep(u, self.logit, self.temperature).to(x.dtype)

    def physical(self) -> dict[str, float]:
        return {"rate [%]": 100 * torch.sigmoid(self.logit.detach()).item()}


class LearnedDropout(ConcreteDropout):
    """An ``nn.Dropout`` of a network whose rate is learned (``learn_dropout``)."""

    def plain(self) -> nn.Dropout:
        """The ``nn.Dropout`` that the network has again after training, with the rate found."""
        return nn.Dropout(self.p).train(self.training)
