"""Counts."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedpart.nn.likelihoods.base import LIKELIHOODS, Fault, Likelihood, shaped
from fedpart.nn.likelihoods.gaussian import regression_errors


@LIKELIHOODS.register("poisson")
class Poisson(Likelihood):
    """``outputs`` f, the logarithms of rates, and counts ``targets``, ``[B, ...]`` of one size:
    ``sum exp(f) - y f + log y!`` nats.
    """

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
