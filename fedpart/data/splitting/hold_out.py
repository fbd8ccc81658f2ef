"""Which training examples form the validation set, where a source of data does not say so itself."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedpart.parameters.proportions import largest_remainders
from fedpart.randomness.streams import generator

HoldOut = Literal["last", "last_of_class", "random"]
HOLD_OUTS = ("last", "last_of_class", "random")


class Division(NamedTuple):
    """Places of the examples that stay and of those that are held out, both ascending int64."""

    kept: Tensor
    held_out: Tensor


def divide(targets: Tensor, points: float, how: HoldOut, data_seed: int = 0, part: int = 0) -> Division:
    """Hold out some of the examples.

    Args:
        targets: [n] classes.
        points: how many, below n; or below 1: the share of all, rounded.
        how: ``last``: the last ones in the file's order; ``last_of_class``: the last ones of each class;
            ``random``: drawn by ``data_seed``. The last two take of each class in proportion to its size.
        data_seed: of ``random``.
        part: number of the draw, where one source is divided several times.

    Raises:
        ValueError: an unknown way, or as many points as there are examples, or a negative number.
    """
    if how not in HOLD_OUTS:
        raise ValueError(f"hold_out is one of {', '.join(HOLD_OUTS)}, got {how!r}.")
    n = len(targets)
    if isinstance(points, bool) or not isinstance(points, (int, float)) or not 0 <= points < n:
        raise ValueError(
            f"Of {n} training examples, {points!r} cannot be held out; give a number below {n}, or a share "
            f"below 1."
        )
    count = round(n * points) if 0 < points < 1 else int(points)
    out = np.zeros(n, dtype=bool)
    if how == "last":
        out[n - count :] = True
    else:
        labels = targets.numpy()
        classes, sizes = np.unique(labels, return_counts=True)
        random = generator(data_seed, "data.hold_out", part)
        for label, share in zip(classes, largest_remainders(count, sizes.tolist()), strict=True):
            members = np.flatnonzero(labels == label)
            if how == "random":
                members = random.permutation(members)
            out[members[len(members) - share :]] = True
    return Division(torch.from_numpy(np.flatnonzero(~out)), torch.from_numpy(np.flatnonzero(out)))
