"""What a test knows of somebody's network: how to build it, its data, its loss in plain torch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from fedpart.likelihoods import Classification, Gaussian, TokenClassification


@dataclass(frozen=True)
class Stock:
    """A network that was not written for fedpart.

    Args:
        build: the network, given the rate of all its dropout.
        data: ``(inputs, targets)`` of so many examples, given a generator.
        of: options of :class:`fedpart.Task`, which have one hyperparameter without noise.
        loss: the mean over examples in plain torch, ``(module, named weights, psi [1], inputs, targets)``.
        vectorised: None, or why several clients cannot be computed together: a regular expression.
        fused: the same of cohort fusion.
    """

    build: Callable[[float], nn.Module]
    data: Callable[[int, torch.Generator], tuple[Any, Any]]
    of: Callable[[], dict[str, Any]]
    loss: Callable[..., torch.Tensor]
    vectorised: str | None = None
    fused: str | None = None
    frozen: bool = field(default=False)  # whether some of its weights are constants

    def network(self, dropout: float = 0.2) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build(dropout)

    def shard(self, examples: int, seed: int) -> tuple[Any, Any]:
        return self.data(examples, torch.Generator().manual_seed(seed))


def called(module, named, inputs):
    if isinstance(inputs, dict):
        return functional_call(module, named, (), inputs)
    return functional_call(module, named, (inputs,))


def logits(found):
    return found if isinstance(found, torch.Tensor) else found.logits


def classes():
    """Classification, whose temperature is learned."""
    return {"likelihood": Classification(temperature=1.5)}


def of_classes(module, named, psi, inputs, targets):
    return F.cross_entropy(logits(called(module, named, inputs)) / psi.exp(), targets)


def next_tokens():
    """A language model, whose temperature is learned."""
    return {"likelihood": TokenClassification(shift=True, temperature=1.5)}


def of_next_tokens(module, named, psi, inputs, targets):
    outputs = (logits(called(module, named, inputs)) / psi.exp())[:, :-1]
    each = F.cross_entropy(outputs.transpose(1, 2), targets[:, 1:], reduction="none")  # 0 where ignored
    return (each.sum(1) / (targets[:, 1:] != -100).sum(1)).mean()


def numbers():
    """Regression, whose variance is learned."""
    return {"likelihood": Gaussian(variance=0.5, learned=True)}


def of_numbers(module, named, psi, inputs, targets):
    outputs = called(module, named, inputs)
    return F.gaussian_nll_loss(outputs.squeeze(1), targets, psi.exp().expand(len(targets)), full=True)
