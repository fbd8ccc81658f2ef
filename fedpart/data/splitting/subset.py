"""Small training sets: a fixed random choice of points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpart.data.dataset import Dataset
from fedpart.randomness.streams import generator


def random_places(n: int, points: int, seed: int) -> NDArray[np.int64]:
    """Places of ``points`` of n examples, chosen uniformly without replacement, ascending int64.

    The choice is a function of the data seed and n alone, so it is the same for every method and every
    training seed (App. J.2); a smaller choice is contained in a larger one.

    Raises:
        ValueError: ``points`` is below 1 or above n.
    """
    if not 1 <= points <= n:
        raise ValueError(f"points must lie between 1 and the {n} training examples, got {points}.")
    return np.sort(generator(seed, "data.subset").permutation(n)[:points])


def random_subset(dataset: Dataset, points: int | None, seed: int) -> Dataset:
    """The examples of ``dataset`` at :func:`random_places`; None keeps all."""
    return dataset if points is None else dataset.subset(random_places(len(dataset), points, seed))
