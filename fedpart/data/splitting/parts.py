"""Parts of data sets: a random choice of points, some classes, what each client has, the chunks D_1..D_C."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpart.checks import check_list, require
from fedpart.data.dataset import Dataset, Splits, has_labels
from fedpart.data.given import Examples, as_dataset, is_examples
from fedpart.partition.proportions import largest_remainders
from fedpart.randomness.streams import generator
from fedpart.trees import Tree, first_leaf, joined


def random_places(n: int, points: int, seed: int) -> NDArray[np.int64]:
    """Places of ``points`` of n examples, uniformly without replacement, ascending int64: a function of the
    data seed and n alone (App. J.2); a smaller choice is contained in a larger one."""
    require(1 <= points <= n, f"points must lie between 1 and the {n} training examples, got {points}.")
    return np.sort(generator(seed, "data.subset").permutation(n)[:points])


def random_subset(dataset: Dataset, points: int | None, seed: int) -> Dataset:
    """The examples of ``dataset`` at :func:`random_places`; None keeps all."""
    return dataset if points is None else dataset.subset(random_places(len(dataset), points, seed))


def of_classes(splits: Splits, classes: Sequence[int]) -> Splits:
    """The examples of some classes, in all three parts; class ``classes[i]`` becomes class i."""
    if not all(map(has_labels, splits.parts().values())):
        raise ValueError("Only data whose targets are labels can be reduced to some classes; leave it out.")
    check_list("classes", classes, "numbers of classes", "[0, 7]")
    whole = all(type(c) is int and 0 <= c < splits.num_classes for c in classes)
    if len(classes) < 2 or not whole or len(set(classes)) < len(classes):
        known = f"0..{splits.num_classes - 1}"
        raise ValueError(f"classes are some of {known}, each once, got {list(classes)}; give at least two.")
    numbers = torch.full((splits.num_classes,), -1)
    numbers[list(classes)] = torch.arange(len(classes))

    def part(whole: Dataset) -> Dataset:
        chosen = whole.subset(torch.nonzero(numbers[whole.targets] >= 0)[:, 0])
        return chosen.relabelled(numbers[chosen.targets])

    names = tuple(splits.classes[c] for c in classes) if splits.classes else ()
    return splits.mapped(part, num_classes=len(classes), classes=names)


def by_client(dataset: Dataset, numbers: Tensor | None = None) -> list[Dataset]:
    """The examples of each client, in the order of their numbers, for instance for ``federate``. ``numbers
    [N]`` are those of the clients that are wanted, ascending, each with an example; None: all that have
    some."""
    owners = clients_of(dataset)
    wanted = torch.unique(owners) if numbers is None else numbers
    places = _places(owners.numpy(), wanted.numpy())
    if empty := [int(number) for number, held in zip(wanted, places, strict=True) if not len(held)]:
        raise ValueError(
            f"Client {empty[0]} has none of these {len(dataset)} examples, and {len(empty) - 1} others have "
            f"none; give every client at least one, or take the clients that have some."
        )
    plain = Dataset(dataset.inputs, dataset.targets, dataset.groups)
    return [plain.subset(torch.from_numpy(held)) for held in places]


def clients_of(dataset: Dataset) -> Tensor:
    """The number of each example's client, [n] int64, which the data set must know."""
    if dataset.clients is None:
        raise ValueError(
            "The split natural leaves every example with its client, but the data set does not know its "
            "clients; say so (data_options: {client: COLUMN}), or use another split.recipe."
        )
    return dataset.clients


def _places(owners: NDArray[np.int64], wanted: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The places of the examples of each of the wanted clients, both ascending."""
    order = np.argsort(owners, kind="stable")
    sides = (np.searchsorted(owners[order], wanted, side) for side in ("left", "right"))
    return [order[start:end] for start, end in zip(*sides, strict=True)]


def check_shards(shards: Any, examples: int, clients: int, recipe: str) -> list[NDArray[np.int64]]:
    """The example indices of every client, ``[n_i]`` int64, as the recipe of that name returned them:
    non-empty and disjoint, so that what scores hyperparameters is not trained on."""
    if not isinstance(shards, Sequence | np.ndarray) or isinstance(shards, str):
        remedy = "it must return a list of example indices for every client"
        raise ValueError(f"The split {recipe!r} returned {type(shards).__name__}; {remedy}.")
    require(len(shards) == clients, f"The split {recipe!r} made {len(shards)} shards for {clients} clients.")
    arrays, owner = [], np.full(examples, -1)
    for client, shard in enumerate(shards):
        indices = np.asarray(shard)
        has = f"The split {recipe!r} gives client {client}"
        require(indices.size, f"{has} no examples; give every client at least one.")
        if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
            remedy = "it must give [n] integers, its examples"
            raise ValueError(f"{has} {indices.dtype} {list(indices.shape)}; {remedy}.")
        outside = indices[(indices < 0) | (indices >= examples)]
        if len(outside):
            fault = f"{has} the example {outside[0]}, but there are {examples}"
            raise ValueError(f"{fault}, numbered 0 to {examples - 1}.")
        indices = indices.astype(np.int64)
        taken = indices[owner[indices] >= 0]
        if len(taken):
            remedy = "give it to one of them"
            raise ValueError(f"{has} the example {taken[0]}, which client {owner[taken[0]]} has; {remedy}.")
        if len(np.unique(indices)) < len(indices):
            raise ValueError(f"{has} an example twice; give every example at most once.")
        owner[indices] = client
        arrays.append(indices)
    return arrays


def _length(part: Any) -> int:
    while isinstance(part, (tuple, Mapping)):
        part = next(iter(part.values() if isinstance(part, Mapping) else part))
    return len(part)


def given_chunks(data: Examples | Sequence[Examples]) -> list[Dataset] | None:
    """The chunks, if ``data`` are chunks; None for data that are still to be divided."""
    pairs: Any = data if isinstance(data, tuple) and len(data) == 2 else ()
    if pairs and all(type(pair) is tuple for pair in pairs):
        first, second = ([*map(_length, pair)] for pair in pairs)
        if {len(first), len(second)} != {2} or first[0] != first[1] or second[0] != second[1]:
            return None
        ways = "give chunks as a list, and trees of inputs and targets as Dataset(inputs, targets)"
        require(first != second, f"Two pairs of one length are chunks, or inputs and targets: {ways}.")
    if isinstance(data, (list, tuple)) and data and all(is_examples(chunk) for chunk in data):
        return [as_dataset(chunk) for chunk in data]
    return None


@dataclass(frozen=True, eq=False)
class Chunks:
    """Examples in the order of their chunks, numbered 1..C: chunk k is ``data[bounds[k-1]:bounds[k]]``, the
    share u_k of all."""

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
    """The examples in the order of their chunks: n examples, divided at random by ``shares``; or the chunks
    themselves, whose sizes decide."""
    chunks = given_chunks(dataset)
    if chunks is None:
        examples = as_dataset(dataset)  # type: ignore[arg-type]
        counts = largest_remainders(len(examples), shares)
        order = generator(seed, "chunks of examples").permutation(len(examples))
        whole = examples.subset(order)
    else:
        if len(shares) not in (1, len(chunks)):
            fault = f"There are {len(chunks)} chunks of data for {len(shares)} proportions"
            raise ValueError(f"{fault}; give as many.")
        counts = [len(chunk) for chunk in chunks]
        if len(shares) > 1:
            shares = tuple(count / sum(counts) for count in counts)
        else:
            counts = [sum(counts)]
        whole = Dataset(*joined([(chunk.inputs, chunk.targets) for chunk in chunks]))
    if 0 in counts:
        fault = f"Chunk {counts.index(0) + 1} of {len(counts)} gets none of the {sum(counts)} examples"
        raise ValueError(f"{fault}; give more data, fewer chunks, or a larger proportion.")
    return Chunks(whole, [0, *np.cumsum(counts).tolist()], shares)
