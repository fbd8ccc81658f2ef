"""What a recipe has to return: every client has examples, and no example has two clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_shards(shards: Any, examples: int, clients: int, recipe: str) -> list[NDArray[np.int64]]:
    """The example indices of every client, ``[n_i]`` int64 in the order given.

    An example that two clients held could lie in two chunks, and what scores hyperparameters would have been
    trained on. Examples without a client are left out of the experiment.

    Args:
        shards: what the recipe returned.
        examples: n.
        clients: N.
        recipe: its name, for messages.

    Raises:
        ValueError: there are not N non-empty, disjoint arrays of integers in 0..n-1.
    """
    if not isinstance(shards, Sequence | np.ndarray) or isinstance(shards, str):
        raise ValueError(
            f"The split {recipe!r} returned {type(shards).__name__}; it must return a list of example "
            f"indices for every client."
        )
    if len(shards) != clients:
        raise ValueError(f"The split {recipe!r} made {len(shards)} shards for {clients} clients.")
    found, owner = [], np.full(examples, -1)
    for client, shard in enumerate(shards):
        indices = np.asarray(shard)
        has = f"The split {recipe!r} gives client {client}"
        if not indices.size:
            raise ValueError(f"{has} no examples; give every client at least one.")
        if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
            raise ValueError(
                f"{has} {indices.dtype} {list(indices.shape)}; it must give [n] integers, the indices of the "
                f"client's examples."
            )
        outside = indices[(indices < 0) | (indices >= examples)]
        if len(outside):
            raise ValueError(
                f"{has} the example {outside[0]}, but there are {examples}, numbered 0 to {examples - 1}."
            )
        indices = indices.astype(np.int64)
        taken = indices[owner[indices] >= 0]
        if len(taken):
            raise ValueError(
                f"{has} the example {taken[0]}, which client {owner[taken[0]]} has; give every example to "
                f"one client at most."
            )
        if len(np.unique(indices)) < len(indices):
            raise ValueError(f"{has} an example twice; give every example at most once.")
        owner[indices] = client
        found.append(indices)
    return found
