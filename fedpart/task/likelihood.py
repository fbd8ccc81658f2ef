"""Likelihoods p(y | outputs): averaged network outputs become a negative log-likelihood per example."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpart.registry import nearest

Likelihood = Callable[[Tensor, Tensor], Tensor]
AVERAGES = ("logits", "log_probabilities", "probabilities")


def classification(outputs: Tensor, targets: Tensor) -> Tensor:
    """Categorical likelihood. ``outputs [B, K]`` logits, ``targets [B]`` int64; ``[B]`` nats."""
    if targets.is_floating_point():
        raise ValueError(
            "classification takes integers, but the targets are real numbers; use likelihood='gaussian'"
        )
    return F.cross_entropy(outputs, targets, reduction="none")


def gaussian(outputs: Tensor, targets: Tensor) -> Tensor:
    """Gaussian regression with unit variance. ``outputs``, ``targets [B, ...]`` of one size; ``[B]`` nats."""
    squared = (outputs - targets.reshape(outputs.shape)).square().reshape(len(outputs), -1)
    return 0.5 * (squared + math.log(2 * math.pi)).sum(1)


def categorical(outputs: Tensor, targets: Tensor) -> Tensor:
    """Classification whose outputs ``[B, K]`` are averaged log-probabilities already; ``[B]`` nats.

    They are not normalised again: the mean of log-probabilities would become the mean of logits.
    """
    return F.nll_loss(outputs, targets, reduction="none")


LIKELIHOODS: dict[str, Likelihood] = {"classification": classification, "gaussian": gaussian}


def resolve_likelihood(likelihood: str | Likelihood, average: str) -> tuple[str, Likelihood]:
    """Name and function of a likelihood for outputs averaged in the given way.

    Args:
        likelihood: a name in :data:`LIKELIHOODS`, or a callable ``(outputs [B, ...], targets) -> nll [B]``.
        average: one of :data:`AVERAGES`.

    Raises:
        ValueError: an unknown name, an unknown average, or probabilities of a regression.
    """
    if average not in AVERAGES:
        raise ValueError(f"Unknown average over samples {average!r}: {nearest(average, AVERAGES)}")
    if not isinstance(likelihood, str):
        return f"own {getattr(likelihood, '__name__', type(likelihood).__name__)}", likelihood
    if likelihood not in LIKELIHOODS:
        raise ValueError(f"Unknown likelihood {likelihood!r}: {nearest(likelihood, LIKELIHOODS)}")
    if likelihood == "gaussian" and average != "logits":
        raise ValueError(
            f"A Gaussian regression has no {average}; use average='logits', the mean of its outputs."
        )
    if likelihood == "classification" and average != "logits":
        return likelihood, categorical
    return likelihood, LIKELIHOODS[likelihood]


def average_samples(outputs: Tensor, how: str) -> Tensor:
    """Average network outputs over the S augmentation samples; the paper does not say of what.

    Args:
        outputs: ``[B, S, K...]``.
        how: ``logits``: their mean (LILA); ``log_probabilities``: mean of log-softmax (Augerino), a lower
            bound of ``probabilities``: log of the mean probability (last-layer marginal likelihood).

    Returns:
        ``[B, K...]``: mean outputs, or log-probabilities (whose mean is not normalised).
    """
    if how == "logits":
        return outputs.mean(1) if outputs.shape[1] > 1 else outputs.sum(1)  # which is one operation less
    log_p = outputs.log_softmax(-1)
    if how == "log_probabilities":
        return log_p.mean(1)
    return torch.logsumexp(log_p, 1) - math.log(outputs.shape[1])
