"""How well a network does on the examples that a client holds out."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedpart.checks import Misfit
from fedpart.randomness.noise import Noise
from fedpart.task.task import Batch, Task


class HeldOutScore(NamedTuple):
    """Sums over held-out examples: of their negative log-likelihoods, nats, and of the shares of each that
    are predicted rightly, see :meth:`.Likelihood.hits`; None where there are no classes."""

    examples: int
    nll: float
    correct: float | None

    @property
    def errors(self) -> float | None:
        """Of the shares that are predicted wrongly."""
        return None if self.correct is None else self.examples - self.correct


def score(
    task: Task, w: Mapping[str, Tensor], psi: Tensor, batches: Iterable[tuple[Batch, Noise]]
) -> HeldOutScore:
    """Score a network with its stochastic layers off, as at inference; zeros without any example."""
    examples, nll = 0, 0.0
    correct: float | None = None
    with torch.no_grad():
        for batch, noise in batches:
            try:
                found = task.predict(w, psi, batch, noise)
            except IndexError as error:
                raise Misfit(error) from error
            examples += len(found.nll)
            nll += found.nll.sum().item()
            if found.hits is not None:
                correct = (correct or 0) + found.hits.sum().item()
    if not examples and has_hits(task):
        correct = 0
    return HeldOutScore(examples, nll, correct)


def has_hits(task: Task) -> bool | None:
    """:attr:`.Likelihood.has_hits` of the task's likelihood."""
    with task.likelihood_at(None) as likelihood:
        return likelihood.has_hits
