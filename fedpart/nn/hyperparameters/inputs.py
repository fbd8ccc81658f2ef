"""Masks over input features (Section 5), fixed to compare models by L_ML, or learned; and noise on inputs."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedpart.checks import require
from fedpart.nn.hyperparameters.base import RARE, TRANSFORMS, HyperModule, concrete, logit_of
from fedpart.randomness.noise import normal, uniform


class _Mask(HyperModule):
    """Over so many features of inputs ``[rows, features]``."""

    def __init__(self, features: int) -> None:
        super().__init__()
        if features < 1:
            raise ValueError(f"A mask needs at least one feature, got {features}.")
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        """``x``: ``[rows, features]``."""
        if x.ndim != 2 or x.shape[1] != self.features:
            raise ValueError(
                f"A mask over {self.features} features takes inputs [rows, {self.features}], got "
                f"{list(x.shape)}; set its number of features to theirs, and flatten more dimensions."
            )
        return x * self.values(x).to(x.dtype)

    def values(self, x: Tensor) -> Tensor:
        """What ``x`` is multiplied by."""
        raise NotImplementedError


class FixedMask(_Mask):
    """An input transform that lets the same features through for every row; it has no hyperparameters.

    Models with different masks are compared by L_ML. Weights behind what is masked get no gradient.

    Args:
        features: number of input features.
        kept: K, which keeps the first K features; or one 0 or 1 (or bool) for each feature.
    """

    mask: Tensor

    def __init__(self, features: int, kept: int | Sequence[int | bool]) -> None:
        super().__init__(features)
        self.register_buffer("mask", torch.tensor(_entries(features, kept)))

    def values(self, x: Tensor) -> Tensor:
        return self.mask

    def extra_repr(self) -> str:
        return f"features={self.features}, kept={int(self.mask.sum())}"


class ConcreteMask(_Mask):
    """An input transform whose mask is a concrete Bernoulli variable (Maddison et al. 2016), learned.

    Feature i of a row is multiplied by ``m = sigmoid((logit_i + log u - log(1 - u)) / temperature)``, ``u ~
    U(0, 1)``, which exceeds 1/2 with probability ``sigmoid(logit_i)``; the lower the temperature, the nearer
    m is to 0 or 1, and the noisier its gradient. As an augmentation it is sampled in ``eval()`` too.

    Args:
        features: number of input features.
        probability: initial probability of keeping a feature, in (0, 1).
        temperature: of the relaxation, > 0; the paper does not state it.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("logit",)
    fixed = ("features", "temperature")
    limits: ClassVar = {"logit": (RARE, -RARE)}  # all but one in a million of a feature's values are kept

    def __init__(self, features: int, probability: float = 0.5, temperature: float = 0.1) -> None:
        super().__init__(features)
        what, certain = "The probability of keeping a feature", "use FixedMask for a mask that is certain"
        logit = logit_of(probability, temperature, what, certain)
        self.temperature, self.logit = temperature, nn.Parameter(torch.full((features,), logit))

    def values(self, x: Tensor) -> Tensor:
        """Of every element by itself."""
        return concrete(self.logit, uniform(x.shape, like=self.logit), self.temperature)

    def physical(self) -> dict[str, float]:
        """Probability of keeping each feature, ``{"keep[0] [%]": 50.0, ...}``."""
        keep = 100 * torch.sigmoid(self.logit.detach())
        return {f"keep[{i}] [%]": value for i, value in enumerate(keep.tolist())}


def _entries(features: int, kept: int | Sequence[int | bool]) -> list[float]:
    """The mask that ``kept`` describes, as zeros and ones."""
    if isinstance(kept, int) and not isinstance(kept, bool):
        if not 1 <= kept <= features:
            raise ValueError(f"A mask keeps the first 1 to {features} of {features} features, got {kept}.")
        return [1.0] * kept + [0.0] * (features - kept)
    if isinstance(kept, bool | float | str):
        raise ValueError(f"A mask is a whole number of features or one 0 or 1 for each, got {kept!r}.")
    if len(kept) != features:
        remedy = "give one 0 or 1 for each feature, or the number of leading features to keep"
        raise ValueError(f"The mask has {len(kept)} entries, but there are {features} features; {remedy}.")
    for i, entry in enumerate(kept):
        require(entry in (0, 1), f"Entries of a mask are 0 or 1, but entry {i} is {entry}.")
    require(any(kept), f"The mask keeps none of the {features} features; set at least one entry to 1.")
    return [float(entry) for entry in kept]


@TRANSFORMS.register("noise")
class InputNoise(HyperModule):
    """Adds ``std * e``, ``e ~ N(0, 1)`` for every element of every row, to inputs of any shape.

    psi is ``log std``, so the standard deviation stays positive and a step of psi is a step in percent of it;
    ``std`` is where it starts, > 0, in the units of the inputs. As an augmentation it is drawn in ``eval()``
    too."""

    hyperparameters: ClassVar[tuple[str, ...]] = ("log_std",)
    limits: ClassVar = {"log_std": (math.log(1e-9), math.log(1e9))}

    def __init__(self, std: float = 0.1) -> None:
        super().__init__()
        if not 0 < std < math.inf:
            remedy = "leave the noise out for 0"
            raise ValueError(f"The standard deviation of input noise is positive, got {std}; {remedy}.")
        self.log_std = nn.Parameter(torch.tensor(math.log(std)))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: floating point, ``[rows, ...]``; every element has its own noise."""
        if not x.is_floating_point():
            remedy = "put it behind the layer that makes numbers of them, such as an embedding"
            raise ValueError(f"Input noise takes floating-point inputs, got {x.dtype}; {remedy}.")
        return x + (self.log_std.exp() * normal(x.shape, like=self.log_std)).to(x.dtype)

    def physical(self) -> dict[str, float]:
        return {"std": self.log_std.detach().exp().item()}
