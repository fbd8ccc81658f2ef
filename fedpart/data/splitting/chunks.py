"""Chunks D_1..D_C of data in one place."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedpart.data.dataset import Dataset
from fedpart.data.given import Examples, as_dataset, is_examples
from fedpart.partition.proportions import largest_remainders
from fedpart.randomness.streams import generator
from fedpart.trees import Tree, first_leaf, joined


def given_chunks(given: Examples | Sequence[Examples]) -> list[Dataset] | None:
    """The chunks, if they are what is given; None for data that are still to be divided."""
    if isinstance(given, (list, tuple)) and given and all(is_examples(chunk) for chunk in given):
        return [as_dataset(chunk) for chunk in given]
    return None


@dataclass(frozen=True, eq=False)
class Chunks:
    """Examples in the order of their chunks, numbered 1..C.

    Attributes:
        data: all of them.
        bounds: C + 1 offsets; chunk k is ``data[bounds[k-1]:bounds[k]]``.
        shares: u_1..u_C.
    """

    data: Dataset
    bounds: list[int]
    shares: tuple[float, ...]

    def examples(self, first: int, last: int) -> Dataset:
        """The examples of chunks ``first..last``."""
        if not 1 <= first <= last < len(self.bounds):
            raise ValueError(f"Chunks are numbered 1 to {len(self.bounds) - 1}, got {first} to {last}.")
        places = slice(self.bounds[first - 1], self.bounds[last])
        return Dataset(*self.data.batch(places))

    def draw(self, first: int, last: int, count: int, rng: np.random.Generator) -> tuple[Tree, Tree]:
        """Inputs and targets of ``count`` examples of chunks ``first..last``, with replacement (I.1)."""
        drawn = torch.from_numpy(rng.integers(self.bounds[first - 1], self.bounds[last], count))
        return self.data.batch(drawn.to(first_leaf(self.data.targets).device))


def in_chunks(dataset: Examples | Sequence[Examples], shares: tuple[float, ...], seed: int) -> Chunks:
    """The examples in the order of their chunks.

    Args:
        dataset: n examples, divided at random by ``shares``; or the chunks themselves, whose sizes decide. A
            single share takes all of them together. Each is a :class:`Dataset` or ``(inputs, targets)``.
        shares: C proportions.
        seed: of the division.

    Raises:
        ValueError: a chunk without examples, another number of chunks than of proportions, or no data.
    """
    chunks = given_chunks(dataset)
    if chunks is None:
        examples = as_dataset(dataset)  # type: ignore[arg-type]
        counts = largest_remainders(len(examples), shares)
        order = generator(seed, "chunks of examples").permutation(len(examples))
        whole = examples.subset(order)
    else:
        if len(shares) not in (1, len(chunks)):
            raise ValueError(
                f"There are {len(chunks)} chunks of data for {len(shares)} proportions; give one of each per "
                f"chunk."
            )
        counts = [len(chunk) for chunk in chunks]
        if len(shares) > 1:
            shares = tuple(count / sum(counts) for count in counts)
        else:
            counts = [sum(counts)]
        whole = Dataset(*joined([(chunk.inputs, chunk.targets) for chunk in chunks]))
    if 0 in counts:
        raise ValueError(
            f"Chunk {counts.index(0) + 1} of {len(counts)} gets none of the {sum(counts)} examples; give "
            f"more data, fewer chunks, or a larger proportion."
        )
    return Chunks(whole, [0, *np.cumsum(counts).tolist()], shares)
