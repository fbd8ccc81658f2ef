"""Cohorts: which clients a round asks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fedpart.federated.settings import FederationSettings
from fedpart.randomness.streams import generator


def draw_cohort(
    settings: FederationSettings,
    round: int,
    available: Sequence[int] | None = None,
    *,
    size: int | None = None,
    without: Collection[int] = (),
    turn: int = 0,
) -> list[int]:
    """Clients of round ``round`` (1..), ascending: a sample without replacement, by client number.

    Args:
        available: client numbers to choose from; all N if not given. Fewer than are wanted: all of them.
        size: how many are wanted; the cohort if not given.
        without: clients that cannot be chosen.
        turn: 0.., another sample of the same round.
    """
    rng = generator(settings.seed, "cohort", round, turn)
    wanted = settings.cohort if size is None else size
    pool = settings.clients if available is None else np.array(sorted(set(available)), np.int64)
    count = pool if isinstance(pool, int) else len(pool)
    drawn = rng.choice(pool, min(wanted + len(without), count), replace=False).tolist()
    return sorted([client for client in drawn if client not in without][:wanted])
