"""What a test knows of somebody's network: how to build it, its data, its loss in plain torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from fedpart.nn.likelihoods import Classification, Gaussian, TokenClassification


@dataclass(frozen=True)
class Stock:
    """A network that was not written for fedpart.

    Args:
        build: the network, given the rate of all its dropout.
        data: ``(inputs, targets)`` of so many examples, given a generator.
        of: options of :class:`fedpart.Task`, which have one hyperparameter without noise.
        loss: the mean over examples in plain torch, of ``(outputs, psi [1], targets)``; None if the network
            returns it.
        plain: the network before it was compiled; None if it was not.
        grouped: None, or why several clients cannot be computed together: a regular expression.
        fused: the same of cohort fusion.
        frozen: whether some of its weights are constants.
    """

    build: Callable[[float], nn.Module]
    data: Callable[[int, torch.Generator], tuple[Any, Any]]
    of: Callable[[], dict[str, Any]]
    loss: Callable[..., torch.Tensor] | None
    plain: Callable[[float], nn.Module] | None = None
    grouped: str | None = None
    fused: str | None = None
    frozen: bool = False

    def network(self, dropout: float = 0.2, plain: bool = False) -> nn.Module:
        build = self.plain if plain and self.plain else self.build
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build(dropout)

    def shard(self, examples: int, seed: int) -> tuple[Any, Any]:
        return self.data(examples, torch.Generator().manual_seed(seed))

    def value(self, call: Callable[..., Any], psi: torch.Tensor, inputs: Any, targets: Any) -> torch.Tensor:
        """The loss of a network that is run by ``call``."""
        if self.loss is None:
            return call(inputs, targets)["loss"].mean()
        found = call(**inputs) if isinstance(inputs, dict) else call(inputs)
        return self.loss(found if isinstance(found, torch.Tensor) else found.logits, psi, targets)


def classes():
    """Classification, whose temperature is learned."""
    return {"likelihood": Classification(temperature=1.5)}


def of_classes(outputs, psi, targets):
    return F.cross_entropy(outputs / psi.exp(), targets)


def next_tokens():
    """A language model, whose temperature is learned."""
    return {"likelihood": TokenClassification(shift=True, temperature=1.5)}


def of_next_tokens(outputs, psi, targets):
    before = (outputs / psi.exp())[:, :-1].transpose(1, 2)
    each = F.cross_entropy(before, targets[:, 1:], reduction="none")  # 0 where there is no target
    return (each.sum(1) / (targets[:, 1:] != -100).sum(1)).mean()


def numbers():
    """Regression, whose variance is learned."""
    return {"likelihood": Gaussian(variance=0.5, learned=True)}


def of_numbers(outputs, psi, targets):
    return F.gaussian_nll_loss(outputs.squeeze(1), targets, psi.exp().expand(len(targets)), full=True)
