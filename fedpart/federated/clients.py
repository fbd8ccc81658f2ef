"""Clients: chunk, cap and architecture of every client number, and sizes that each of its steps draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpart.checks import require
from fedpart.federated.options import Deal
from fedpart.methods.base import FederatedMethod
from fedpart.partition.partition import Partition
from fedpart.partition.proportions import check_proportions, largest_remainders
from fedpart.randomness.streams import generator
from fedpart.task.gradients import Job
from fedpart.updates.update import Round, Update

Bytes = NDArray[np.uint8]


class Assignment:
    """A small number of every client, fixed for the run and equal in every runtime.

    A client of a number of N or more, which joins later, gets the value that is furthest below its share.
    """

    def __init__(self, values: Bytes, shares: Mapping[int, float], least: Assignment | None = None) -> None:
        self.shares, self._least = dict(shares), least
        self._values = bytearray(values.tobytes())  # a byte per client
        counts = np.bincount(values, minlength=max(shares) + 1).tolist()
        self._counts = {value: counts[value] for value in shares}

    def first(self, clients: int) -> Bytes:
        """Values of the clients 0..clients-1 of those assigned so far, ``[clients]``."""
        return np.frombuffer(bytes(self._values[:clients]), np.uint8)

    def __getitem__(self, client: int) -> int:
        if client < 0:
            raise IndexError(f"Client numbers start at 0, got {client}.")
        while len(self._values) <= client:
            late = len(self._values)
            least = 0 if self._least is None else self._least[late]
            suitable = [value for value in self.shares if value >= least]
            value = max(suitable, key=lambda each: (late + 1) * self.shares[each] - self._counts[each])
            self._counts[value] += 1
            self._values.append(value)
        return self._values[client]


def assigned_chunks(proportions: Sequence[float], clients: int, seed: int) -> Assignment:
    """Chunk (1..C) of every client, by largest remainders of the proportions, at least one (App. J.1)."""
    shares = dict(enumerate(check_proportions(proportions), 1))
    check_clients(len(shares), clients)
    counts = largest_remainders(clients, list(shares.values()))
    while 0 in counts:  # every chunk gets a client, from the largest
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(0)] += 1
    ordered = np.repeat(np.array([*shares], np.uint8), counts)
    return Assignment(ordered[generator(seed, "chunk assignment").permutation(clients)], shares)


def check_clients(chunks: int, clients: int) -> None:
    """Refuse fewer clients than chunks."""
    if clients < chunks:
        remedy = "use at least one client per chunk, or fewer chunks"
        raise ValueError(f"There are {clients} clients for {chunks} chunks; {remedy}.")


def assigned_caps(
    shares: Mapping[int, float] | None, deal: Deal, chunks: Assignment, clients: int, seed: int
) -> Assignment:
    """Cap (1..C) of every client, by largest remainders; a later one gets one with which it can train."""
    whole = {max(chunks.shares): 1.0} if shares is None else shares
    ascending = np.repeat(np.array([*whole], np.uint8), largest_remainders(clients, whole.values()))
    order = np.arange(clients)
    if shares is not None:
        order = generator(seed, "caps").permutation(clients)
        if deal == "chunk":
            order = order[np.argsort(chunks.first(clients)[order], kind="stable")]
    caps = np.empty_like(ascending)
    caps[order] = ascending
    return Assignment(caps, whole, chunks)


def assigned_architectures(
    shares: Sequence[float], chunks: Assignment, clients: int, seed: int
) -> Assignment:
    """Architecture (0..A-1) of every client, by largest remainders, over all and nearly so in each chunk."""
    dealt = np.zeros(clients, np.uint8)
    if len(shares) > 1:
        order = generator(seed, "architectures").permutation(clients)
        order = order[np.argsort(chunks.first(clients)[order], kind="stable")]
        counts = largest_remainders(clients, shares)
        places = np.concatenate([(np.arange(count) + 0.5) / count for count in counts if count])
        spread = np.argsort(places, kind="stable")  # each architecture evenly over all clients
        dealt[order] = np.repeat(np.arange(len(shares)), counts)[spread]
    return Assignment(dealt, dict(enumerate(shares)))


class Kind(NamedTuple):
    """What decides a client's jobs and the size of its upload: 1..C, 1..C and 0..A-1."""

    chunk: int
    cap: int
    architecture: int


Kinds = Mapping[Kind, tuple[int, int]]
"""By kind, ascending: the first client of it, and how many there are."""


def kinds_of(*attributes: Bytes) -> Kinds:
    """Of which kinds clients are."""
    kinds = {}
    for values in product(*(np.flatnonzero(np.bincount(attribute)).tolist() for attribute in attributes)):
        theirs = np.ones(len(attributes[0]), bool)
        for attribute, value in zip(attributes, values, strict=True):
            theirs &= attribute == value
        if theirs.any():
            kinds[Kind(*values)] = int(theirs.argmax()), int(theirs.sum())
    return kinds


def check_jobs(kinds: Kinds, plan: Callable[[int, int], Any], subnetworks: int, method: str) -> None:
    """Refuse a plan that is none, or in which a partition is trained twice."""
    numbers = range(1, subnetworks + 1)
    wanted = f"a list of Jobs of subnetworks 1 to {subnetworks}, with each partition once at most"
    for jobs in (plan(client, 1) for client, _ in kinds.values()):
        fits = isinstance(jobs, (list, tuple)) and all(
            isinstance(job, Job) and job.subnetwork in numbers and job.partition in (None, *numbers)
            for job in jobs
        )
        trained = [job.partition for job in jobs if job.partition is not None] if fits else []
        once = len({*trained}) == len(trained)
        require(fits and once, f"The plan() of the method {method!r} returns {jobs!r:.99}; return {wanted}.")


def check_plans(
    kinds: Kinds, plan: Callable[[int, int], Sequence[Job]], chunks: int, method: str, deal: Deal, psi: bool
) -> None:
    """Refuse caps with which a client has nothing to do, or a partition nobody who trains it."""
    remedy = "give more clients larger caps, or use fewer chunks"
    if deal != "chunk":
        remedy = f"set caps_by: chunk, {remedy}"
    trained: set[int | None] = set()
    for (chunk, cap, _), (client, count) in kinds.items():
        jobs = plan(client, 1)
        if not jobs:
            others = f" and {count - 1} more" if count > 1 else ""
            gradient = f", and psi's gradient one of {chunk - 1}" if psi else ""
            fault = f"Client {client}{others} of chunk {chunk} can compute nothing with a cap of {cap}:"
            raise ValueError(f"{fault} to train takes one of {chunk}{gradient}; {remedy}.")
        if any(job.subnetwork > cap for job in jobs):
            remedy = "make its plan() heed ClientView.cap, or leave caps out"
            raise ValueError(f"The method {method!r} has clients compute more than their caps; {remedy}.")
        trained |= {job.partition for job in jobs}
    if idle := sorted(set(range(1, chunks + 1)) - trained):
        fault = f"No client trains partition {idle[0]}, which takes a chunk up to {idle[0]} and a cap of"
        raise ValueError(f"{fault} {idle[0]} or more; {remedy}.")


def check_architectures(
    kinds: Kinds, sent: Iterable[Collection[int]], cells: int, architectures: Sequence[Mapping[str, Any]]
) -> None:
    """Refuse architectures that no client has, and numbers that no client trains."""
    had = {kind.architecture for kind in kinds}
    for index, architecture in enumerate(architectures):
        if index not in had:
            raise ValueError(
                f"No client has the architecture {dict(architecture['model_options'])}, whose share is "
                f"{architecture['share']:g} of {sum(count for _, count in kinds.values())}; give it a larger "
                f"one, or leave it out."
            )
    if len({cell for held in sent for cell in held}) < cells:
        raise ValueError(
            "Some weights of the task's network are trained by nobody: no client has them, or none in a "
            "chunk that is early enough; give the task the network of the largest architecture, and more "
            "clients that one."
        )


def draws_sizes(method: FederatedMethod, settings: Any) -> bool:
    """Whether local steps go through parts of the clients' networks."""
    sizes = settings.architectures is not None
    fault = "draw_sizes draws from architectures, but there are none"
    remedy = "give them, or leave draw_sizes out"
    require(sizes or not settings.method_options.get("draw_sizes"), f"{fault}; {remedy}.")
    require(
        not (sizes and method.draw_sizes and settings.error_feedback),
        "A round leaves out numbers that none of a client's steps has trained, and with them what "
        "error_feedback adds; leave it or drawn sizes out.",
    )
    return sizes and method.draw_sizes


def shares_of(sizes: Sequence[int], steps: int, partitions: Sequence[Partition]) -> dict[int, float]:
    """The share of steps that train each cell, if there are so many and they go through ``sizes`` in turn."""
    trained, (again, rest) = Counter[int](), divmod(steps, len(sizes))
    for size in {*sizes}:
        often = again * sizes.count(size) + sizes[:rest].count(size)
        for j in range(1, partitions[size].chunks + 1):
            trained.update(dict.fromkeys(partitions[size].cell_sizes(j), often))
    return {cell: often / steps for cell, often in trained.items()}


def as_trained(protocol: Any, update: Update, client: int, round: Round) -> None:
    """Make each change what it were if all of the client's steps had trained the cell, in place. It weighs
    the share of those that have, or with a defence, for which clients are equal, as any other; what none has
    trained is left out."""
    view = protocol.view(client, round.number, round.psi)
    local = protocol.method.local_settings(view)
    steps = local.epochs * -(-update.examples // local.batch_size)
    shares = shares_of(view.drawn_sizes(steps), steps, protocol.partitions)
    for cell, change in update.cells.items():
        if not (share := shares.get(cell, 0.0)):
            del update.parts[cell]
        elif share < 1:
            change.div_(share)
            update.shares |= {} if protocol.settings.defence is not None else {cell: share}
