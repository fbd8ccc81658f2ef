"""Chunks D_1..D_C of data in one place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedpart.data.dataset import Dataset
from fedpart.rng import generator
from fedpart.space import largest_remainders


def in_chunks(
    dataset: Dataset | Sequence[Dataset], shares: Sequence[float], seed: int
) -> tuple[Dataset, list[int]]:
    """The examples in the order of their chunks, and the C + 1 bounds of these.

    Raises:
        ValueError: a chunk without examples, or another number of chunks than of proportions.
    """
    if isinstance(dataset, Dataset):
        counts = largest_remainders(len(dataset), shares)
        order = generator(seed, "chunks of examples").permutation(len(dataset))
        whole = dataset.subset(order)
    else:
        chunks = list(dataset)
        if len(chunks) != len(shares):
            raise ValueError(f"There are {len(chunks)} chunks of data for {len(shares)} proportions.")
        counts = [len(chunk) for chunk in chunks]
        whole = Dataset(
            torch.cat([chunk.inputs for chunk in chunks]), torch.cat([chunk.targets for chunk in chunks])
        )
    if 0 in counts:
        raise ValueError(
            f"Chunk {counts.index(0) + 1} of {len(counts)} gets none of the {sum(counts)} examples; give "
            f"more data, fewer chunks, or a larger proportion."
        )
    return whole, [0, *np.cumsum(counts).tolist()]
