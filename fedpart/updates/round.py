"""A round: the server's values, with which clients begin, and the sum of a cohort, alike on every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from fedpart.updates.errors import taken
from fedpart.updates.residuals import Residuals
from fedpart.updates.update import LARGEST, Bounds, Norms, Update, largest_change

OfAll = Callable[[Sequence[Update]], Update | None]
"""What takes the place of the sum: from all updates of a cohort at once, see :meth:`.Defended.sum`."""
BLOCKS = 256  # a cohort is summed in at most this many blocks of positions, whatever the number of workers


@dataclass
class CohortSum:
    """What came out of a cohort's round.

    Attributes:
        cohort: who was asked, ascending.
        total: weighted sum of the updates; None: there was none.
        upload_bytes: of the updates.
        skipped: clients without an update, see :func:`.skipped`.
        norms: of what was measured of each client's update.
    """

    cohort: list[int] = field(default_factory=list)
    total: Update | None = None
    upload_bytes: int = 0
    skipped: list[dict[str, Any]] = field(default_factory=list)
    norms: dict[int, Norms] = field(default_factory=dict)

    @property
    def taken(self) -> list[int]:
        """The clients whose updates it sums."""
        return taken(self.cohort, self.skipped)

    def join(self, other: CohortSum, scale: float = 1.0) -> None:
        """Add the sum of other clients, in place; their changes and psi gradients count ``scale`` times.

        The weights that a mean is divided by are not scaled: with a scale below 1 the mean is shorter.
        """
        total = other.total
        if total is not None and scale != 1:
            for tensor in (*total.deltas.values(), *([] if total.psi is None else [total.psi])):
                tensor.mul_(scale)
        self.total = sum_updates((self.total, total))
        self.cohort = sorted([*self.cohort, *other.cohort])
        self.upload_bytes += other.upload_bytes
        self.norms |= other.norms
        self.skipped = sorted([*self.skipped, *other.skipped], key=lambda skip: skip["client"])


def blocks(cohort: Sequence[int], single: bool = False) -> list[Sequence[int]]:
    """The cohort in the fixed blocks of its sum: contiguous, at most :data:`BLOCKS`, their sizes within one.

    Where every update is needed (``single``), each client is a block.
    """
    n = len(cohort)
    count = n if single else min(BLOCKS, n)
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
    cohort: Sequence[int], term: Callable[[int], Update | None], of_all: OfAll | None = None
) -> Update | None:
    """The sum of ``term(client)`` over a cohort, or what takes its place.

    Summing each block of positions and then the blocks, in order, gives the same bits for any number of
    workers; at most two sums are held at a time.

    Args:
        cohort: client numbers.
        term: a client's weighted update; None if it has none. Called once for each, in order.
        of_all: what takes the place of the sum, in the same form; None: the sum.
    """
    if of_all is not None:
        return of_all([update for client in cohort if (update := term(client)) is not None])
    return sum_updates(sum_updates(map(term, block)) for block in blocks(cohort))


@dataclass(frozen=True, eq=False)
class Round:
    """What every client of a round starts from, and what becomes of their updates.

    Attributes:
        number: 1..
        w: ``[size]`` in partition order.
        psi: ``[P]``.
        residuals: of the clients, with ``error_feedback``.
        bounds: to which the server clips, where they follow the clients; None: those of the settings.
        norms: that the parts without a usual norm have had so far, where bounds follow the clients.
        of_all: what takes the place of the sum of the clients' updates, with a ``defence``; None: the sum.
    """

    number: int
    w: Tensor
    psi: Tensor
    residuals: Residuals | None = None
    bounds: Bounds | None = None
    norms: Mapping[int, Sequence[float]] = field(default_factory=dict)
    of_all: OfAll | None = None

    @cached_property
    def limit(self) -> float:
        """The largest change of a weight that is taken: who follows the clients' norms trusts none."""
        return LARGEST if self.bounds is None else largest_change(self.w)
