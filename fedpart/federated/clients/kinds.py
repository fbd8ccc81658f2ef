"""Kinds: architecture of every client, and how many clients there are of each chunk, cap and architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpart.federated.clients.assignment import ChunkAssignment
from fedpart.parameters.proportions import largest_remainders
from fedpart.randomness.streams import generator


class Kind(NamedTuple):
    """What decides a client's jobs and the size of its upload.

    ``chunk``: 1..C; ``cap``: 1..C; ``architecture``: 0..A-1.
    """

    chunk: int
    cap: int
    architecture: int


Kinds = Mapping[Kind, tuple[int, int]]
"""By kind, ascending: the first client of it, and how many there are."""


class ArchitectureAssignment:
    """Architecture (0..A-1) of every client number; fixed for the run.

    The clients of each chunk follow the shares by largest remainders, in an order that the seed decides. A
    client that joins later gets the architecture that is furthest below its share.

    Args:
        shares: of the clients, by architecture.
        chunks: of the same clients.
        clients: N.
        seed: of the order.
    """

    def __init__(self, shares: Sequence[float], chunks: ChunkAssignment, clients: int, seed: int) -> None:
        self._shares, of_chunk = tuple(shares), chunks.first(clients)
        found = np.zeros(clients, np.uint8)
        if len(shares) > 1:
            for chunk in np.unique(of_chunk):
                here = np.flatnonzero(of_chunk == chunk)
                here = here[generator(seed, "architectures", int(chunk)).permutation(len(here))]
                found[here] = np.repeat(np.arange(len(shares)), largest_remainders(len(here), shares))
        self._counts = np.bincount(found, minlength=len(shares)).tolist()
        self._architectures = bytearray(found.tobytes())

    def first(self, clients: int) -> NDArray[np.uint8]:
        """Those of the clients 0..clients-1, of those assigned so far, ``[clients]``."""
        return np.frombuffer(bytes(self._architectures[:clients]), np.uint8)

    def __getitem__(self, client: int) -> int:
        if client < 0:
            raise IndexError(f"Client numbers start at 0, got {client}.")
        while len(self._architectures) <= client:
            late = len(self._architectures) + 1
            lacking = [late * share - had for share, had in zip(self._shares, self._counts, strict=True)]
            chosen = lacking.index(max(lacking))
            self._counts[chosen] += 1
            self._architectures.append(chosen)
        return self._architectures[client]


def kinds_of(*attributes: NDArray[np.uint8]) -> Kinds:
    """Of which kinds clients are.

    Args:
        *attributes: ``[N]`` each, in the order of :class:`Kind`.
    """
    found = {}
    for values in product(*(np.flatnonzero(np.bincount(one)).tolist() for one in attributes)):
        theirs = np.ones(len(attributes[0]), bool)
        for one, value in zip(attributes, values, strict=True):
            theirs &= one == value
        if theirs.any():
            found[Kind(*values)] = int(theirs.argmax()), int(theirs.sum())
    return found
