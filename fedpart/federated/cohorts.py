"""Cohorts: the sum of their answers, and in how many bytes values and answers travel."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from fedpart.federated.protocol import Protocol
from fedpart.task.gradients import Job
from fedpart.updates.errors import ClientError, Refusal, skipped
from fedpart.updates.round import CohortSum, Round, aggregate
from fedpart.updates.update import Update

UPLOAD_HEADER, DOWNLOAD_HEADER = 569, 710  # bytes of a Flower message besides its numbers, about


def upload_numbers(protocol: Protocol, client: int, jobs: Sequence[Job]) -> int:
    """How many numbers the client's answer to ``jobs`` holds."""
    weights, psi = protocol.upload_sizes(client, jobs)
    return sum(weights.values()) + (psi or 0)


def upload_bytes(protocol: Protocol, client: int, jobs: Sequence[Job]) -> int:
    """Size of the client's answer to ``jobs``, as a message; where nothing is sent, it would be."""
    weights, psi = protocol.upload_sizes(client, jobs)
    return _answer_bytes(protocol, weights.values(), psi or 0)


def update_bytes(protocol: Protocol, update: Update) -> int:
    """Size of a client's update, not yet weighted, as a message; see :func:`upload_bytes`."""
    psi = 0 if update.psi is None else len(update.psi)
    return _answer_bytes(protocol, map(len, update.deltas.values()), psi)


def _answer_bytes(protocol: Protocol, cells: Iterable[int], psi: int) -> int:
    of_psi = psi * protocol.task.dtype.itemsize
    return sum(weight_bytes(protocol, size) for size in cells) + of_psi + UPLOAD_HEADER


def download_bytes(protocol: Protocol, client: int) -> int:
    """Size of the server's values for ``client``, as a message."""
    return state_bytes(protocol, client) + DOWNLOAD_HEADER


def weight_bytes(protocol: Protocol, numbers: int) -> int:
    """In how many bytes the change of a cell of so many numbers travels."""
    return numbers * protocol.task.dtype.itemsize if protocol.codec is None else protocol.codec.size(numbers)


def state_bytes(protocol: Protocol, client: int) -> int:
    """In how many bytes the server's values travel to ``client``, without the rest of the message."""
    size = protocol.task.dtype.itemsize
    of_w = size if protocol.download is None else protocol.download.itemsize
    return protocol.partition_of(client).needed * of_w + protocol.task.psi_space.size * size


def expected_upload_ratio(protocol: Protocol) -> float:
    """Of all clients to FedAvg's of the task's network: ``sum_k u_k sum_{j >= k} u_j`` (App. J.1)."""
    whole, total = protocol.partition.space.size * protocol.task.dtype.itemsize, 0.0
    for (chunk, cap, architecture), (_, count) in protocol.kinds.items():
        partition = protocol.partitions[architecture]
        sizes = [s for j in range(chunk, cap + 1) for s in partition.cell_sizes(j).values()]
        sent = sum(weight_bytes(protocol, size) for size in sizes)
        total += count / protocol.settings.clients * sent / whole
    return total


Answer = Callable[[int], Update]
"""A client's update, checked; it raises a ClientError or a Refusal where there is none."""


def sum_cohort(protocol: Protocol, round: Round, cohort: Sequence[int], answer: Answer) -> CohortSum:
    """The sum of a cohort's answers, or what a defence makes of them.

    Args:
        cohort: ascending; each is asked for its answer once, in this order.
        answer: see :data:`Answer`.

    Raises:
        ClientError: a client has none, and the settings say ``fail``; with ``skip`` the sum lists it.
    """
    summed = CohortSum(cohort=[*cohort])
    summed.total = aggregate(cohort, partial(term, protocol, round, answer, summed), round.of_all)
    return summed


def term(protocol: Protocol, round: Round, answer: Answer, summed: CohortSum, client: int) -> Update | None:
    """The client's term of the sum, whose bytes and norms ``summed`` notes; None: it is skipped."""
    try:
        sent = answer(client)
        size = update_bytes(protocol, sent)
        update, summed.norms[client] = protocol.term(client, sent, round)
    except (ClientError, Refusal) as error:
        if isinstance(error, Refusal):
            error = ClientError.refused(client, round.number, error)
        if protocol.settings.on_client_error == "fail":
            raise error from error.__cause__
        summed.skipped.append(skipped(client, error))
        return None
    summed.upload_bytes += size
    return update
