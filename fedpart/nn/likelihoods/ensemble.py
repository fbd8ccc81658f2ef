"""One class per example, predicted by several networks whose probabilities are averaged."""

import math
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.extras import need
from fedpart.nn.likelihoods.base import LIKELIHOODS
from fedpart.nn.likelihoods.classification import Categorical, check_classes


@LIKELIHOODS.register("ensemble")
class EnsembleClassification(Categorical):
    """One class per example: ``outputs [B, M, K]`` logits of M members, ``targets [B]`` int64.

    ``p(y)`` is the mean of the members' probabilities, and -log p what is reported. Training minimises the
    sum of the members' cross-entropies, in weights and psi (SuperWeight Networks, Teterwak et al. 2024); -log
    p is at most their mean (Jensen). Temperature and label smoothing are each member's, see
    :class:`.Categorical`."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self._check(outputs, targets)
        return F.nll_loss(self.mean_log_p(outputs), targets, reduction="none")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Sum over the members of their cross-entropies, ``[B]`` nats."""
        self._check(outputs, targets)
        each = self.nll(outputs.flatten(0, 1), targets.repeat_interleave(outputs.shape[1]))
        return each.view(outputs.shape[:2]).sum(1)

    def mean_log_p(self, outputs: Tensor) -> Tensor:
        """Logarithms of the averaged probabilities, ``[B, K]``, given ``[B, M, K]``."""
        return torch.logsumexp(self.log_p(outputs), 1) - math.log(outputs.shape[1])

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.mean_log_p(outputs).argmax(1) == targets

    def answers(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        p = self.mean_log_p(outputs).exp()
        return p.argmax(1), p

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Macro F1 of the averaged probabilities, and what :meth:`of_members` finds."""
        metrics = need("torchmetrics.functional.classification", "F1", "measures")
        p, classes = self.mean_log_p(outputs), outputs.shape[2]
        f1 = metrics.multiclass_f1_score(p.exp(), targets, classes, average="macro").item()
        return {"f1": f1, **self.of_members(outputs, targets)}

    def of_members(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Calibration error of the averaged probabilities, and, of several members, their
        :func:`diversity`."""
        p = self.mean_log_p(outputs).exp()
        scores = {"calibration_error": calibration_error(p, targets)}
        if outputs.shape[1] > 1:
            chosen = outputs.argmax(2)
            error = (p.argmax(1) != targets).double().mean().item()
            scores["diversity"] = diversity(chosen, targets)
            scores["diversity_over_ensemble_error"] = _ratio(disagreement(chosen), error)
        return scores

    def _check(self, outputs: Tensor, targets: Tensor) -> None:
        check_classes("ensemble", targets)
        if outputs.ndim != 3:
            raise ValueError(
                f"ensemble takes outputs of several members, [B, M, K], but those of the network are "
                f"{list(outputs.shape)}; use a model that is an ensemble, or likelihood='classification'"
            )


def calibration_error(p: Tensor, targets: Tensor, bins: int = 15) -> float:
    """Expected calibration error (Guo et al. 2017) over equal bins of the largest of ``p [n, K]``; importing
    torchmetrics for it would take seconds."""
    confidence, chosen = p.double().max(1)
    inside = ((confidence * bins).ceil().long() - 1).clamp(0, bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64, device=p.device)
    gaps.index_add_(0, inside, (chosen == targets).double() - confidence)
    return gaps.abs().sum().item() / len(targets)


def disagreement(chosen: Tensor) -> float:
    """Share of examples on which two members' classes ``[n, M]`` differ, its mean over pairs of members."""
    pairs = list(combinations(range(chosen.shape[1]), 2))
    return sum((chosen[:, i] != chosen[:, j]).double().mean().item() for i, j in pairs) / len(pairs)


def diversity(chosen: Tensor, targets: Tensor) -> float:
    """:func:`disagreement` of ``chosen [n, M]`` over a member's share of wrong predictions, the mean of
    members; 0 if none is ever wrong."""
    return _ratio(disagreement(chosen), (chosen != targets[:, None]).double().mean().item())


def _ratio(differ: float, error: float) -> float:
    return differ / error if error else 0.0
