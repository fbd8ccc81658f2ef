"""Cohorts: the sum of their answers, alike on every engine, and the bytes in which all travels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap
from typing import Any

import torch
from torch import Tensor

from fedpart.federated.protocol import Protocol
from fedpart.task.gradients import Job
from fedpart.trees import read
from fedpart.updates.errors import DIVERGED, ClientError, Refusal, skipped
from fedpart.updates.update import LARGEST, Norms, OfAll, Round, Update

UPLOAD_HEADER, DOWNLOAD_HEADER = 569, 710  # bytes of a Flower message besides its numbers, about
BLOCKS = 256  # a cohort is summed in at most this many blocks of positions, whatever the number of workers


@dataclass
class CohortSum:
    """What came out of a cohort's round; ``total``: weighted sum of the updates, or None."""

    cohort: list[int] = field(default_factory=list)
    total: Update | None = None
    upload_bytes: int = 0
    skipped: list[dict[str, Any]] = field(default_factory=list)
    norms: dict[int, Norms] = field(default_factory=dict)

    def told(self, seconds: float) -> dict[str, Any]:
        """Fields of the report on its round, which has taken so long."""
        total = self.total or Update(clients=0)
        mean = total.loss / total.examples if total.examples else None
        took = (total.seconds or seconds) if total.clients else 0.0
        sums = {"train_loss": mean, "lml": total.lml, "replies": total.clients, "examples": total.visited}
        here = {"cohort": self.cohort, "upload_bytes": self.upload_bytes, "skipped": self.skipped}
        return sums | here | {"client_seconds": took}

    @property
    def taken(self) -> list[int]:
        """The clients whose updates it sums."""
        left_out = {skip["client"] for skip in self.skipped}
        return [client for client in self.cohort if client not in left_out]

    def settle(self, doubts: Sequence[Tensor]) -> bool:
        """Read what was left on the device, losses and norms; whether that and ``doubts`` are finite, and not
        too large."""
        total = self.total or Update()
        worst = torch.stack([*doubts]).abs().max() if doubts else 0.0
        norms = (norm for of_client in self.norms.values() for norm in of_client.values())
        told = iter(read([*norms, worst, total.loss, total.unseen_loss]))
        self.norms = {c: {part: next(told) for part in of_client} for c, of_client in self.norms.items()}
        worst, total.loss, total.unseen_loss = told
        return all(abs(number) <= LARGEST for number in (worst, total.loss, total.unseen_loss))

    def join(self, other: CohortSum, scale: float = 1.0) -> None:
        """Add the sum of other clients, in place; their parts count ``scale`` times, their weights once: with
        a scale below 1 the mean is shorter."""
        total = other.total
        if total is not None and scale != 1:
            for tensor in total.parts.values():
                tensor.mul_(scale)
        self.total = sum_updates((self.total, total))
        self.cohort = sorted([*self.cohort, *other.cohort])
        self.upload_bytes += other.upload_bytes
        self.norms |= other.norms
        self.skipped = sorted([*self.skipped, *other.skipped], key=lambda skip: skip["client"])


def tally(skips: Iterable[Mapping[str, Any]], more: Iterable[str] = ()) -> dict[str, int]:
    """How often each category occurs among ``skips`` and ``more``, in alphabetical order."""
    return dict(sorted(Counter([*(str(skip["category"]) for skip in skips), *more]).items()))


def blocks(cohort: Sequence[int], single: bool = False) -> list[Sequence[int]]:
    """The cohort in the fixed blocks of its sum: contiguous, sizes within one; ``single``: each client."""
    n = len(cohort)
    count = n if single else min(BLOCKS, n)
    return [cohort[n * b // count : n * (b + 1) // count] for b in range(count)]


def sum_updates(updates: Iterable[Update | None]) -> Update | None:
    """Sum weighted updates left to right, into the first; None stands for a client without an update."""
    total: Update | None = None
    for update in filter(None, updates):
        total = update if total is None else total.add(update)
        del update  # or it would live on while the next one is made
    return total


def aggregate(
    cohort: Sequence[int], term: Callable[[int], Update | None], of_all: OfAll | None = None
) -> Update | None:
    """The sum of ``term(client)`` over a cohort, or what takes its place; block by block, which gives the
    same bits for any number of workers."""
    if of_all is not None:
        return of_all([update for client in cohort if (update := term(client)) is not None])
    return sum_updates(sum_updates(map(term, block)) for block in blocks(cohort))


Answer = Callable[[int], Update]
"""A client's update, checked; it raises a ClientError or a Refusal where there is none."""


def sum_cohort(protocol: Protocol, round: Round, cohort: Sequence[int], answer: Answer) -> CohortSum:
    """The sum of a cohort's answers, or what a defence makes of them."""
    summed = CohortSum(cohort=[*cohort])
    summed.total = aggregate(cohort, partial(term, protocol, round, answer, summed), round.of_all)
    return summed


def term(protocol: Protocol, round: Round, answer: Answer, summed: CohortSum, client: int) -> Update | None:
    """The client's term of the sum, whose bytes and norms ``summed`` notes; None: it is skipped."""
    try:
        update = answer(client)
        size = _answer_bytes(protocol, {part: len(tensor) for part, tensor in update.parts.items()})
        update, summed.norms[client] = protocol.receive(update, client, round)
    except (ClientError, Refusal) as error:
        if isinstance(error, Refusal):
            error = ClientError.refused(client, round.number, error)
        lost = round.trial and error.category in DIVERGED
        if protocol.settings.on_client_error == "fail" and not lost:
            raise error from error.__cause__
        summed.skipped.append(skipped(client, error))
        return None
    summed.upload_bytes += size
    return update


def upload_bytes(protocol: Protocol, client: int, jobs: Sequence[Job]) -> int:
    """Size of the client's answer to ``jobs``, as a message; where nothing is sent, it would be."""
    return _answer_bytes(protocol, protocol.upload_sizes(client, jobs))


def _answer_bytes(protocol: Protocol, sizes: Mapping[int, int]) -> int:
    return sum(starmap(protocol.bytes_of, sizes.items())) + UPLOAD_HEADER


def download_bytes(protocol: Protocol, client: int) -> int:
    """Size of the server's values for ``client``, as a message."""
    return state_bytes(protocol, client) + DOWNLOAD_HEADER


def state_bytes(protocol: Protocol, client: int) -> int:
    """In how many bytes the server's values travel to ``client``, without the rest of the message."""
    size, psi = protocol.task.dtype.itemsize, protocol.task.psi_space.size
    of_w = (protocol.download or protocol.task.dtype).itemsize + size * protocol.settings.combination.sends
    return protocol.partition_of(client).needed * of_w + psi * size


def expected_upload_ratio(protocol: Protocol) -> float:
    """Of all clients to FedAvg's of the task's network: ``sum_k u_k sum_{j >= k} u_j`` (App. J.1)."""
    whole, total = protocol.partition.space.size * protocol.task.dtype.itemsize, 0.0
    for (chunk, cap, architecture), (_, count) in protocol.kinds.items():
        partition = protocol.partitions[architecture]
        sizes = [pair for j in range(chunk, cap + 1) for pair in partition.cell_sizes(j).items()]
        sent = sum(starmap(protocol.bytes_of, sizes))
        total += count / protocol.settings.clients * sent / whole
    return total
