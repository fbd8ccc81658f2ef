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
    examples, nll, errors = 0, 0.0, 0
    classes = task.likelihood_name == "classification"
    with torch.no_grad():
        for batch, noise in batches:
            found = task.predict(w, psi, batch, noise)
            examples += len(found.nll)
            nll += found.nll.sum().item()
            errors += int(len(found.nll) - found.hits.sum()) if classes and found.hits is not None else 0
    return HeldOutScore(examples, nll, errors if classes else None)
