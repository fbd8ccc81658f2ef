"""Batches that a training loop of one's own gives."""

from __future__ import annotations

import torch

from fedpart.data.dataset import Examples, as_dataset
from fedpart.task.task import Batch


def given_batch(given: Batch | Examples, device: torch.device) -> Batch:
    """A user's batch, where the model is.

    Raises:
        ValueError: it is empty, or its inputs and targets differ in number.
    """
    if not isinstance(given, Batch):
        dataset = as_dataset(given)
        given = Batch(dataset.inputs, dataset.targets)
    if len(given.inputs) == 0:
        raise ValueError("The batch is empty; a step needs at least one example.")
    return Batch(*(None if part is None else part.to(device) for part in given))  # type: ignore[arg-type]
