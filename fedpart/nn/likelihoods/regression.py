"""Numbers to predict: with Gaussian noise, whose variance may be learned, and counts."""

import math
from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedpart.nn.likelihoods.base import LIKELIHOODS, Fault, Likelihood, flag, positive, shaped


@LIKELIHOODS.register("gaussian")
class Gaussian(Likelihood):
    """``outputs``, ``targets [B, ...]`` of one size: ``1/2 sum (f - y)^2 / v + log(2 pi v)`` nats.

    Args:
        variance: v, or where it starts.
        learned: whether v is a hyperparameter. On data that the weights have not seen its best value is the
            mean squared error there; on training data it would shrink with overfitting.
    """

    has_hits = False
    real_targets = True
    limits: ClassVar = {"log_variance": (2 * math.log(1e-9), 2 * math.log(1e9))}

    def __init__(self, variance: float = 1.0, learned: bool = False) -> None:
        super().__init__()
        self.variance = positive("variance", variance)
        start = nn.Parameter(torch.tensor(math.log(variance)))
        self.log_variance = start if flag("learned", learned) else None

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        squared = (outputs - shaped("gaussian", targets, outputs)).square().reshape(len(outputs), -1)
        if self.log_variance is not None:
            scaled = squared * (-self.log_variance).exp()
            return 0.5 * (scaled + self.log_variance + math.log(2 * math.pi)).sum(1)
        if self.variance != 1:
            squared = squared / self.variance
        return 0.5 * (squared + math.log(2 * math.pi * self.variance)).sum(1)

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Root of the mean squared error, and the mean absolute error."""
        return regression_errors(outputs, targets)

    def physical(self) -> dict[str, float]:
        if self.log_variance is None:
            return {}
        return {"standard_deviation": (0.5 * self.log_variance.detach()).exp().item()}


def regression_errors(predictions: Tensor, targets: Tensor) -> dict[str, float]:
    """``rmse`` and ``mae`` of predictions ``[B, ...]``."""
    errors = predictions.reshape(-1) - targets.reshape(-1).to(predictions.dtype)
    return {"rmse": errors.square().mean().sqrt().item(), "mae": errors.abs().mean().item()}


@LIKELIHOODS.register("poisson")
class Poisson(Likelihood):
    """``outputs`` f, logarithms of rates, counts ``targets [B, ...]``: ``sum exp(f) - y f + log y!`` nats."""

    has_hits = False
    real_targets = True

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        counts = shaped("poisson", targets, outputs).to(outputs.dtype)
        nll = outputs.exp() - counts * outputs + torch.lgamma(counts + 1)
        return nll.reshape(len(outputs), -1).sum(1)

    def faults(self, targets: Tensor, classes: int | None) -> Iterable[Fault]:
        fractions = targets != targets.floor() if targets.is_floating_point() else targets < 0
        what = "targets that are no counts, for they are negative or have fractions"
        yield (targets < 0) | fractions, what, "give whole numbers from 0, or use likelihood='gaussian'"

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Errors of the rates as predictions of the counts."""
        return regression_errors(outputs.exp(), targets)
