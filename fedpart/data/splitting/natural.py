"""Data sets that know their clients: who holds which of their examples."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpart.data.dataset import Dataset


def by_client(dataset: Dataset, numbers: Tensor | None = None) -> list[Dataset]:
    """The examples of each client, for instance for ``federate``.

    Args:
        dataset: that knows its clients.
        numbers: [N] int64 of the clients that are wanted, ascending; None: all that have examples.

    Returns:
        N data sets in the order of the numbers, which know no clients themselves.

    Raises:
        ValueError: the data set does not know its clients, or one that is wanted has no examples.
    """
    owners = clients_of(dataset)
    wanted = torch.unique(owners) if numbers is None else numbers
    places = _places(owners.numpy(), wanted.numpy())
    if empty := [int(number) for number, own in zip(wanted, places, strict=True) if not len(own)]:
        raise ValueError(
            f"Client {empty[0]} has none of these {len(dataset)} examples, and {len(empty) - 1} others have "
            f"none; give every client at least one, or take the clients that have some."
        )
    plain = Dataset(dataset.inputs, dataset.targets, dataset.groups)
    return [plain.subset(torch.from_numpy(own)) for own in places]


def clients_of(dataset: Dataset) -> Tensor:
    """The number of each example's client, [n] int64.

    Raises:
        ValueError: the data set does not know its clients.
    """
    if dataset.clients is None:
        raise ValueError(
            "The split natural leaves every example with its client, but the data set does not know its "
            "clients; say so (data_options: {client: COLUMN}), or use another split.recipe."
        )
    return dataset.clients


def _places(owners: NDArray[np.int64], wanted: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The places of the examples of each of the wanted clients, both ascending."""
    order = np.argsort(owners, kind="stable")
    sides = (np.searchsorted(owners[order], wanted, side) for side in ("left", "right"))
    return [order[start:end] for start, end in zip(*sides, strict=True)]
