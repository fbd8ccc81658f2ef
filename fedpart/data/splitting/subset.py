"""Parts of data sets: a fixed random choice of points, and the examples of some classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedpart.data.dataset import Dataset, Splits, has_labels
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


def of_classes(splits: Splits, classes: Sequence[int]) -> Splits:
    """The examples of some classes, in all three parts; class ``classes[i]`` becomes class i.

    Raises:
        ValueError: the targets are not labels; or fewer than two classes, one twice, or an unknown one.
    """
    if not all(map(has_labels, splits.parts().values())):
        raise ValueError("Only data whose targets are labels can be reduced to some classes; leave it out.")
    whole = all(type(c) is int and 0 <= c < splits.num_classes for c in classes)
    if len(classes) < 2 or not whole or len(set(classes)) < len(classes):
        raise ValueError(
            f"classes are some of 0..{splits.num_classes - 1}, each once, got {list(classes)}; give at least "
            f"two."
        )
    numbers = torch.full((splits.num_classes,), -1)
    numbers[list(classes)] = torch.arange(len(classes))

    def part(whole: Dataset) -> Dataset:
        chosen = whole.subset(torch.nonzero(numbers[whole.targets] >= 0)[:, 0])
        return chosen.relabelled(numbers[chosen.targets])

    names = tuple(splits.classes[c] for c in classes) if splits.classes else ()
    return Splits(
        part(splits.train),
        part(splits.validation),
        part(splits.test),
        num_classes=len(classes),
        classes=names,
    )
