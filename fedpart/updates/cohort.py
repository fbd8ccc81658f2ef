"""A cohort's sum, in an order that no engine and no number of workers changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpart.updates.trimmed import trimmed_mean
from fedpart.updates.update import Update

BLOCKS = 256  # a cohort is summed in at most this many blocks of positions, whatever the number of workers


@dataclass
class CohortSum:
    """What came out of a cohort's round.

    Attributes:
        total: weighted sum of the updates; None: there was none.
        upload_bytes: of the updates.
        skipped: clients without an update, see :func:`.skipped`.
    """

    total: Update | None = None
    upload_bytes: int = 0
    skipped: list[dict[str, Any]] = field(default_factory=list)


def blocks(cohort: Sequence[int], trim: float | None = None) -> list[Sequence[int]]:
    """The cohort in the fixed blocks of its sum: contiguous, at most :data:`BLOCKS`, their sizes within one.

    Where a trimmed mean needs every update, each client is a block.
    """
    n = len(cohort)
    count = n if trim is not None else min(BLOCKS, n)
    return [cohort[n * b // count : n * (b + 1) // count] for b in range(count)]


def sum_updates(updates: Iterable[Update | None]) -> Update | None:
    """Sum weighted updates left to right, into the first; None stands for a client without an update."""
    total: Update | None = None
    for update in updates:
        if update is not None:
            total = update if total is None else total.add(update)
        del update  # or it would live on while the next one is made
    return total


def aggregate(
    cohort: Sequence[int], term: Callable[[int], Update | None], trim: float | None = None
) -> Update | None:
    """The sum of ``term(client)`` over a cohort, or its trimmed mean in the same form.

    Summing each block of positions and then the blocks, in order, gives the same bits for any number of
    workers; at most two sums are held at a time.

    Args:
        cohort: client numbers.
        term: a client's weighted update; None if it has none. Called once for each, in order.
        trim: see :func:`.trimmed_mean`; None: the sum.
    """
    if trim is not None:
        return trimmed_mean([update for client in cohort if (update := term(client)) is not None], trim)
    return sum_updates(sum_updates(map(term, block)) for block in blocks(cohort))
