"""Which client belongs to which chunk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedpart.parameters.proportions import check_proportions, largest_remainders
from fedpart.randomness.streams import generator


def check_clients(chunks: int, clients: int) -> None:
    """Refuse fewer clients than chunks.

    Raises:
        ValueError: one sentence.
    """
    if clients < chunks:
        raise ValueError(
            f"There are {clients} clients for {chunks} chunks; use at least one client per chunk, or "
            f"fewer chunks."
        )


class ChunkAssignment:
    """Chunk (1..C) of every client number, fixed for the run and equal in every runtime (App. J.1).

    The N clients follow the proportions u by largest remainders, with at least one client per chunk, in an
    order drawn from the seed. A client that joins later with a number of N or more gets the chunk that is
    furthest below its share.

    Args:
        proportions: u_1..u_C.
        clients: N.
        seed: of the order.

    Raises:
        ValueError: fewer clients than chunks.
    """

    def __init__(self, proportions: Sequence[float], clients: int, seed: int) -> None:
        self.proportions = check_proportions(proportions)
        chunks = len(self.proportions)
        check_clients(chunks, clients)
        counts = largest_remainders(clients, self.proportions)
        while 0 in counts:  # every chunk gets a client, from the largest
            counts[counts.index(max(counts))] -= 1
            counts[counts.index(0)] += 1
        self.counts = counts
        ordered = np.repeat(np.arange(1, chunks + 1, dtype=np.uint8), counts)
        order = generator(seed, "chunk assignment").permutation(clients)
        self._chunks = bytearray(ordered[order].tobytes())  # a byte per client

    def first(self, clients: int) -> NDArray[np.uint8]:
        """Chunks of the clients 0..clients-1 of those assigned so far, ``[clients]``."""
        return np.frombuffer(bytes(self._chunks[:clients]), np.uint8)

    def __getitem__(self, client: int) -> int:
        if client < 0:
            raise IndexError(f"Client numbers start at 0, got {client}.")
        while len(self._chunks) <= client:
            total = len(self._chunks) + 1
            shortfall = [total * u - count for u, count in zip(self.proportions, self.counts, strict=True)]
            late = shortfall.index(max(shortfall))
            self.counts[late] += 1
            self._chunks.append(late + 1)
        return self._chunks[client]
