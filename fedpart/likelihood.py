"""Likelihoods p(y | outputs): each turns averaged network outputs into a negative log-likelihood per example."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Likelihood = Callable[[Tensor, Tensor], Tensor]
AVERAGES = ("logits", "log_probabilities", "probabilities")


def classification(outputs: Tensor, targets: Tensor) -> Tensor:
    """Categorical likelihood. ``outputs [B, K]`` logits or log-probabilities, ``targets [B]`` int64; ``[B]`` nats."""
    return F.cross_entropy(outputs, targets, reduction="none")


def gaussian(outputs: Tensor, targets: Tensor) -> Tensor:
    """Gaussian regression with unit variance. ``outputs``, ``targets [B, ...]`` of one shape; ``[B]`` nats."""
    squared = (outputs - targets.view_as(outputs)).flatten(1) if outputs.ndim > 1 else (outputs - targets)[:, None]
    return 0.5 * (squared.square() + math.log(2 * math.pi)).sum(1)


LIKELIHOODS: dict[str, Likelihood] = {"classification": classification, "gaussian": gaussian}


def average_samples(outputs: Tensor, how: str) -> Tensor:
    """Average network outputs over the S augmentation samples (open point 3 of the method).

    Args:
        outputs: ``[B, S, K...]``.
        how: ``logits``: their mean (LILA); ``log_probabilities``: mean of log-softmax (Augerino);
            ``probabilities``: log of the mean probability (last-layer marginal likelihood).

    Returns:
        ``[B, K...]``; log-probabilities up to normalisation, for classification.
    """
    if how == "logits":
        return outputs.mean(1)
    log_p = outputs.log_softmax(-1)
    return log_p.mean(1) if how == "log_probabilities" else torch.logsumexp(log_p, 1) - math.log(outputs.shape[1])
