"""How well a network does on the examples that a client holds out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedpart.randomness.noise import Noise
from fedpart.task.task import Batch, Task


class HeldOutScore(NamedTuple):
    """Sums over held-out examples.

    ``examples``: how many; ``nll``: of their negative log-likelihoods, nats; ``errors``: wrong classes, None
    where there are no classes.
    """

    examples: int
    nll: float
    errors: int | None


def score(
    task: Task, w: Mapping[str, Tensor], psi: Tensor, batches: Iterable[tuple[Batch, Noise]]
) -> HeldOutScore:
    """Score a network with its stochastic layers off, as at inference; zeros without any example.

    Args:
        task: what is learned.
        w: the module's named tensors.
        psi: ``[P]``.
        batches: held-out examples, each batch with its noise.
    """
    examples, nll = 0, 0.0
    errors = 0 if task.likelihood_name == "classification" else None
    with torch.no_grad():
        for batch, noise in batches:
            found = task.predict(w, psi, batch, noise)
            examples += len(found.nll)
            nll += found.nll.sum().item()
            if found.hits is not None and found.hits.dtype == torch.bool:  # one class per example
                errors = (errors or 0) + int((~found.hits).sum())
    return HeldOutScore(examples, nll, errors)
