"""One number per prediction: with Gaussian noise, as the rate of a count, or among cut points of classes."""

import math
from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpart.nn.likelihoods.base import LIKELIHOODS, Fault, Likelihood, flag, positive, shaped, whole
from fedpart.trees import wide


@LIKELIHOODS.register("gaussian")
class Gaussian(Likelihood):
    """``outputs``, ``targets [B, ...]`` of one size: ``1/2 sum (f - y)^2 / v + log(2 pi v)`` nats; with
    :meth:`in_units` v is in units of the deviation d, ``v d^2`` in place of v.

    Args:
        variance: v, or where it starts.
        learned: whether v is a hyperparameter. On data that the weights have not seen its best value is the
            mean squared error there; on training data it would shrink with overfitting.
    """

    has_hits = False
    real_targets = True
    scaled = True
    mean, deviation = 0.0, 1.0
    limits: ClassVar = {"log_variance": (2 * math.log(1e-9), 2 * math.log(1e9))}

    def __init__(self, variance: float = 1.0, learned: bool = False) -> None:
        super().__init__()
        self.variance = positive("variance", variance)
        start = nn.Parameter(torch.tensor(math.log(variance)))
        self.log_variance = start if flag("learned", learned) else None

    def in_units(self, mean: float, deviation: float) -> None:
        """From now on a network gives targets y as ``(y - mean) / deviation``, and :meth:`over_samples` makes
        y of it, so that errors are in the targets' units."""
        self.mean, self.deviation = mean, positive("deviation", deviation)

    def over_samples(self, outputs: Tensor) -> Tensor:
        averaged = super().over_samples(outputs)
        same = self.deviation == 1 and not self.mean
        return averaged if same else self.mean + self.deviation * averaged

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        errors = (outputs - shaped("gaussian", targets, outputs)) / self.deviation
        squared, area = errors.square().reshape(len(outputs), -1), 2 * math.pi * self.deviation**2
        if self.log_variance is not None:
            scaled = squared * (-self.log_variance).exp()
            return 0.5 * (scaled + self.log_variance + math.log(area)).sum(1)
        if self.variance != 1:
            squared = squared / self.variance
        return 0.5 * (squared + math.log(area * self.variance)).sum(1)

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Root of the mean squared error, and the mean absolute error."""
        return regression_errors(outputs, targets)

    def physical(self) -> dict[str, float]:
        if self.log_variance is None:
            return {}
        return {"standard_deviation": self.deviation * (0.5 * self.log_variance.detach()).exp().item()}


def regression_errors(predictions: Tensor, targets: Tensor) -> dict[str, float]:
    """``rmse`` and ``mae`` of predictions ``[B, ...]``."""
    errors = predictions.reshape(-1) - targets.reshape(-1).to(predictions.dtype)
    root = torch.linalg.vector_norm(errors, dtype=wide(errors.device)) / len(errors) ** 0.5
    return {"rmse": root.item(), "mae": errors.abs().mean().item()}


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

    def answers(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rates."""
        return outputs.exp(), None

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Errors of the rates as predictions of the counts."""
        return regression_errors(outputs.exp(), targets)


@LIKELIHOODS.register("ordinal")
class Ordinal(Likelihood):
    """One number per example, and cut points between K ``classes`` that are learned (McCullagh 1980).

    ``p(y <= k) = sigmoid(c_k - f)`` for ``outputs f [B]`` or ``[B, 1]``, ``targets [B]`` in 0..K-1, and cut
    points ``c_0 < .. < c_{K-2}``, which start one apart, around 0; the negative log-likelihood is ``-log(p(y
    <= k) - p(y <= k - 1))`` nats."""

    has_hits = True
    limits: ClassVar = {"first": (-1e6, 1e6), "raw_gaps": (math.log(math.expm1(1e-6)), 1e6)}

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = whole("classes", classes, least=2)
        self.first = nn.Parameter(torch.tensor(-(classes - 2) / 2))
        gaps = nn.Parameter(torch.full((classes - 2,), math.log(math.expm1(1.0))))
        self.raw_gaps = gaps if classes > 2 else None

    def cut_points(self) -> Tensor:
        """c, ``[K - 1]``, ascending."""
        if self.raw_gaps is None:
            return self.first.reshape(1)
        return torch.cat([self.first.reshape(1), self.first + F.softplus(self.raw_gaps).cumsum(0)])

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.numel() != len(outputs):
            fault = f"ordinal takes one number per example, got outputs {list(outputs.shape)}"
            remedy = "let the network end in one output, or use likelihood='classification'"
            raise ValueError(f"{fault}; {remedy}.")
        if targets.is_floating_point() or targets.ndim != 1:
            fault = f"ordinal takes integers, one per example, got targets {targets.dtype}"
            raise ValueError(f"{fault} {list(targets.shape)}; number the classes from 0 in their order.")
        f = outputs.reshape(len(outputs))
        outside, none = f.new_full((1,), math.inf), f.new_zeros(1)
        bounds = torch.cat([-outside, self.cut_points().to(f.dtype), outside])
        # log(s(h) - s(l)) = log s(h) + log s(-l) + log(1 - e^(l - h)), with no difference of near numbers
        gaps = none[:0] if self.raw_gaps is None else F.softplus(self.raw_gaps).to(f.dtype)
        inner = torch.cat([none, torch.log(-torch.expm1(-gaps)), none])
        try:
            low, high, inside = bounds[targets] - f, bounds[targets + 1] - f, inner[targets]
        except IndexError as error:
            fault = f"A target lies outside the {self.classes} classes 0..{self.classes - 1} of the ordinal"
            raise ValueError(f"{fault} likelihood; give it more classes, or correct the targets.") from error
        return -(_log_sigmoid(high) + _log_sigmoid(-low) + inside)

    def outputs(self, num_classes: int) -> int:
        """One: classes are its intervals."""
        return 1

    def faults(self, targets: Tensor, classes: int | None) -> Iterable[Fault]:
        outside = (targets < 0) | (targets >= self.classes)
        what = f"a target outside the {self.classes} classes 0..{self.classes - 1} of the ordinal likelihood"
        yield outside, what, "give it more classes, or correct the targets"

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._classes(outputs) == targets

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Errors in classes."""
        return regression_errors(self._classes(outputs).to(outputs.dtype), targets)

    def answers(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The median class, and probabilities."""
        below = torch.sigmoid(self.cut_points().detach() - outputs.reshape(-1, 1))
        ends = below.new_zeros(len(below), 1)
        p = torch.diff(below, dim=1, prepend=ends, append=ends + 1)
        return self._classes(outputs), p

    def _classes(self, outputs: Tensor) -> Tensor:
        """The median class: how many cut points are below the number."""
        return (outputs.reshape(-1, 1) > self.cut_points().detach()).sum(1)

    def physical(self) -> dict[str, float]:
        return {f"cut[{k}]": value for k, value in enumerate(self.cut_points().detach().tolist())}


def _log_sigmoid(x: Tensor) -> Tensor:
    """0 at infinity, where the gradient is 0 too."""
    at_infinity = torch.isinf(x)
    return torch.where(at_infinity, 0.0, F.logsigmoid(torch.where(at_infinity, torch.zeros_like(x), x)))
