"""Kinds: architecture of every client, and how many clients there are of each chunk, cap and architecture."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpart.federated.clients.assignment import ChunkAssignment
from fedpart.parameters.proportions import check_proportions, largest_remainders
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

    The N clients follow the shares by largest remainders, and so do those of each chunk as nearly as may be;
    the seed decides who has which. A client that joins later gets the architecture that is furthest below its
    share.

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
            order = generator(seed, "architectures").permutation(clients)
            order = order[np.argsort(of_chunk[order], kind="stable")]
            counts = largest_remainders(clients, shares)
            places = np.concatenate([(np.arange(count) + 0.5) / count for count in counts if count])
            spread = np.argsort(places, kind="stable")  # each architecture evenly over all clients
            found[order] = np.repeat(np.arange(len(shares)), counts)[spread]
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


def checked_architectures(given: Any) -> tuple[Mapping[str, Any], ...]:
    """Each with its ``share`` and ``model_options``.

    Raises:
        ValueError: they are of another form, their shares do not sum to 1, or two are the same.
    """
    known = {"share", "model_options"}
    if not given or not all(
        isinstance(one, Mapping) and "share" in one and one.keys() <= known for one in given
    ):
        raise ValueError(
            f"architectures are a list of {{share: 0.4, model_options: {{width: 0.5}}}}, one for each size "
            f"of the network, got {given!r}."
        )
    shares = check_proportions([one["share"] for one in given], "shares of architectures")
    options = [dict(one.get("model_options") or {}) for one in given]
    if twice := [one for one in options if options.count(one) > 1]:
        raise ValueError(f"Two architectures have the model_options {twice[0]}; give each size once.")
    return tuple({"share": share, "model_options": own} for share, own in zip(shares, options, strict=True))


def check_architectures(
    kinds: Kinds, sent: Mapping[int, Collection[int]], cells: int, architectures: Sequence[Mapping[str, Any]]
) -> None:
    """Refuse architectures that no client has, and numbers that no client trains.

    Args:
        kinds: of clients there are.
        sent: the cells that the first client of each kind sends; they depend on its kind alone.
        cells: how many there are.
        architectures: the setting.

    Raises:
        ValueError: one sentence.
    """
    had = {kind.architecture for kind in kinds}
    for index, architecture in enumerate(architectures):
        if index not in had:
            raise ValueError(
                f"No client has the architecture {dict(architecture['model_options'])}, whose share is "
                f"{architecture['share']:g} of {sum(count for _, count in kinds.values())}; give it a larger "
                f"one, or leave it out."
            )
    if len({cell for held in sent.values() for cell in held}) < cells:
        raise ValueError(
            "Some weights of the task's network are trained by nobody: no client has them, or none in a "
            "chunk that is early enough; give the task the network of the largest architecture, and more "
            "clients that one."
        )
