"""Relay: a cohort's sum that goes from actor to actor, so that one sum crosses from each host to the next."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import ray
import torch
from flwr.app import Message

from fedpart.federated.cohorts import CohortSum, blocks, sum_updates, term
from fedpart.federated.protocol import Protocol
from fedpart.flower.messages import blaming, read_reply
from fedpart.flower.workarounds.objects import identify, message_bytes
from fedpart.updates.errors import ClientError
from fedpart.updates.update import Round, Update, known

Summed = CohortSum | ClientError  # a sum, or why a client has none, where that ends the run


class Late(BaseException):
    """The time for a round is over; no error, for a client may catch these."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Within this context :class:`Late` is raised after so many seconds, whatever the process waits for; in
    another thread than the main one, and where there are no such signals, it never is."""

    def end(*_: object) -> None:
        raise Late

    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def send(
    actors: Sequence[Any], tasks: Sequence[Any], protocol: Any, round: Round, seconds: float
) -> list[Any]:
    """Have actors, a host's side by side, sum the replies to tasks: references to sums, the last of all.

    Each computes contiguous blocks at once, begun in so many seconds, and adds them to the sum before it.
    """
    nothing = torch.empty(0)  # what becomes of updates does not depend on the values that they started from
    values = ray.put((replace(round, w=nothing, psi=nothing, kept=None), round.limit, seconds))
    parts, sums = blocks(tasks), list[Any]()
    actors = actors[: len(parts)]
    for number, actor in enumerate(actors):
        share = parts[len(parts) * number // len(actors) : len(parts) * (number + 1) // len(actors)]
        pairs = [(task.message, task.arrays) for block in share for task in block]
        messages, arrays = zip(*pairs, strict=True)
        sums.append(actor.sum.remote(messages, arrays, sums[-1:], protocol, values, [*map(len, share)]))
    return sums


def receive(
    replies: Iterator[Message], clients: list[int], before: Any, protocol: Protocol, values: Any, sizes: Any
) -> Summed:
    """What an actor makes of its clients' replies: the sum, in blocks of these sizes, after those before."""
    round, limit, seconds = values
    told, bytes, begun = CohortSum(cohort=[*clients]), 0, time.monotonic()

    def answer(client: int) -> Update:
        nonlocal bytes
        reply, left = None, begun + seconds - time.monotonic()
        with suppress(Late):
            if left > 0:
                with limited(left):  # a client that hangs costs this once, and so do all after it
                    reply = next(replies, None)
        if reply is not None:
            identify(reply, str(uuid4()))  # as the driver would
            bytes += message_bytes(reply)
        return blaming(partial(read_reply, limit=limit), protocol, round.number, client, reply)

    terms = map(partial(term, protocol, round, answer, told), clients)
    sums = (sum_updates(next(terms) for _ in range(size)) for size in sizes)
    try:
        mine = [*sums] if before else [sum_updates(sums)]  # nothing is waited for before the first
    except ClientError as error:
        return next((sum for sum in ray.get([*before]) if isinstance(sum, ClientError)), error)
    total: Summed = ray.get(before[0]) if before else CohortSum()
    if isinstance(total, CohortSum):
        told.norms, told.upload_bytes = {**known(told.norms)}, bytes
        total.join(told)
        total.total = sum_updates((total.total, *mine))
    return total
