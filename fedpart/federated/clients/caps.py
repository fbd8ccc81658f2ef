"""Caps: how large a subnetwork each client's device computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpart.federated.clients.assignment import ChunkAssignment
from fedpart.federated.clients.kinds import Kinds
from fedpart.parameters.proportions import check_proportions, largest_remainders
from fedpart.randomness.streams import generator
from fedpart.task.jobs import Job

Deal = Literal["chunk", "free"]


class CapAssignment:
    """Cap (1..C) of every client number: its device computes the subnetworks 1..cap; fixed for the run.

    The N clients follow the shares by largest remainders. A client that joins later with a number of N or
    more gets, of the caps with which it can train in its chunk, the one that is furthest below its share.

    Args:
        shares: of the clients, by cap, ascending; None: all have the cap C.
        deal: ``chunk``: the smallest caps go to the first chunks, and within a chunk the seed decides;
            ``free``: the seed decides, whatever the chunk.
        chunks: of the same clients.
        clients: N.
        seed: of the order.
    """

    def __init__(
        self, shares: Mapping[int, float] | None, deal: Deal, chunks: ChunkAssignment, clients: int, seed: int
    ) -> None:
        self._chunks, highest = chunks, len(chunks.proportions)
        self._shares = {highest: 1.0} if shares is None else dict(shares)
        counts = largest_remainders(clients, self._shares.values())
        self._counts = dict(zip(self._shares, counts, strict=True))
        caps, of_chunk = np.repeat(np.array([*self._shares], np.uint8), counts), chunks.first(clients)
        if shares is not None:
            order = generator(seed, "caps").permutation(clients)
            if deal == "chunk":
                order = order[np.argsort(of_chunk[order], kind="stable")]
            ascending, caps = caps, np.empty_like(caps)
            caps[order] = ascending
        self._caps = bytearray(caps.tobytes())  # a byte per client

    def first(self, clients: int) -> NDArray[np.uint8]:
        """Caps of the clients 0..clients-1 of those assigned so far, ``[clients]``."""
        return np.frombuffer(bytes(self._caps[:clients]), np.uint8)

    def __getitem__(self, client: int) -> int:
        if client < 0:
            raise IndexError(f"Client numbers start at 0, got {client}.")
        while len(self._caps) <= client:
            late = len(self._caps)
            trains = [cap for cap in self._shares if cap >= self._chunks[late]]
            cap = max(trains, key=lambda one: (late + 1) * self._shares[one] - self._counts[one])
            self._counts[cap] += 1
            self._caps.append(cap)
        return self._caps[client]


def check_plans(
    kinds: Kinds, plan: Callable[[int, int], Sequence[Job]], chunks: int, method: str, deal: Deal, psi: bool
) -> None:
    """Refuse caps with which a client has nothing to do, or a partition nobody who trains it.

    Args:
        kinds: of clients there are.
        plan: the jobs of a client in a round; they depend on its kind alone.
        chunks: C.
        method, deal: of the run, for messages.
        psi: whether there are hyperparameters, whose gradient is something to do.

    Raises:
        ValueError: one sentence.
    """
    remedy = "give more clients larger caps, or use fewer chunks"
    if deal != "chunk":
        remedy = f"set caps_by: chunk, {remedy}"
    trained: set[int | None] = set()
    for (chunk, cap, _), (client, count) in kinds.items():
        jobs = plan(client, 1)
        if not jobs:
            others = f" and {count - 1} more" if count > 1 else ""
            gradient = f", and psi's gradient one of {chunk - 1}" if psi else ""
            raise ValueError(
                f"Client {client}{others} of chunk {chunk} can compute nothing with a cap of {cap}: to train "
                f"takes one of {chunk}{gradient}; {remedy}."
            )
        if any(job.subnetwork > cap for job in jobs):
            raise ValueError(
                f"The method {method!r} has clients compute more than their caps; make its plan() heed "
                f"ClientView.cap, or leave caps out."
            )
        trained |= {job.partition for job in jobs}
    if idle := sorted(set(range(1, chunks + 1)) - trained):
        raise ValueError(
            f"No client trains partition {idle[0]}, which takes a chunk up to {idle[0]} and a cap of "
            f"{idle[0]} or more; {remedy}."
        )


def checked_caps(caps: Any, chunks: int) -> dict[int, float]:
    """The shares by cap, ascending.

    Raises:
        ValueError: they are no shares of clients by a number from 1 to ``chunks``.
    """
    if not isinstance(caps, Mapping):
        raise ValueError(f"caps are shares of the clients by cap, {{1: 0.4, 3: 0.6}} say, got {caps!r}.")
    unknown = [cap for cap in caps if type(cap) is not int or not 1 <= cap <= chunks]
    if unknown:
        raise ValueError(
            f"A cap is the number of a subnetwork, of which there are {chunks} as there are chunks, got "
            f"{unknown[0]!r}; use caps from 1 to {chunks}."
        )
    shares = check_proportions([caps[cap] for cap in sorted(caps)], "shares of caps")
    return dict(zip(sorted(caps), shares, strict=True))
