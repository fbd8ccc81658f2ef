"""Small training sets: a fixed random choice of points."""

from __future__ import annotations

import numpy as np

from fedpart.data.dataset import Dataset
from fedpart.rng import generator


def random_subset(dataset: Dataset, points: int | None, seed: int) -> Dataset:
    """``points`` examples chosen uniformly without replacement, in their original order.

    The choice is a function of the data seed and the size of ``dataset`` alone, so it is the same for every
    method and every training seed (App. J.2); a smaller choice is contained in a larger one.

    Args:
        dataset: n examples.
        points: how many to keep, 1..n; None keeps all.
        seed: the data seed.

    Raises:
        ValueError: ``points`` is below 1 or above n.
    """
    if points is None:
        return dataset
    if not 1 <= points <= len(dataset):
        raise ValueError(f"points must lie between 1 and the {len(dataset)} training examples, got {points}.")
    order = generator(seed, "data.subset").permutation(len(dataset))
    return dataset.subset(np.sort(order[:points]))
