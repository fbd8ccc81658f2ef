"""How well a network does on the examples that a client holds out."""

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from fedpart.checks import Misfit
from fedpart.randomness.noise import Noise
from fedpart.task.task import Batch, Task
from fedpart.trees import read


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
    task: Task, w: Mapping[str, Tensor], psi: Tensor, batches: Iterable[tuple[Batch, Noise]],
    dropout: bool = False, outputs: list[Tensor] | None = None,
) -> HeldOutScore:  # fmt: skip
    """Score a network, its stochastic layers off as at inference, unless ``dropout``; zeros without examples.

    To ``outputs``, where they are wanted, each batch's are added, on the CPU. The device is read at the end.
    """
    examples, nlls, hits = 0, list[Tensor](), list[Tensor]()
    with torch.no_grad():
        for batch, noise in batches:
            try:
                predicted = task.predict(w, psi, batch, noise, dropout)
            except IndexError as error:
                raise Misfit(error) from error
            examples += len(predicted.nll)
            nlls.append(predicted.nll.sum())
            if predicted.hits is not None:
                hits.append(predicted.hits.sum())
            if outputs is not None:
                outputs.append(predicted.outputs.cpu())
    told = read([*nlls, *hits])
    nll, correct = (reduce(add, part, 0.0) for part in (told[: len(nlls)], told[len(nlls) :]))
    scored = hits or (not examples and has_hits(task))
    return HeldOutScore(examples, nll, correct if scored else None)


def has_hits(task: Task) -> bool | None:
    """:attr:`.Likelihood.has_hits` of the task's likelihood."""
    with task.likelihood_at(None) as likelihood:
        return likelihood.has_hits
