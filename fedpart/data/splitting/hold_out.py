"""Which training examples form the validation and test sets, where a source of data does not say so."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpart.data.dataset import Dataset, has_labels
from fedpart.partition.proportions import largest_remainders
from fedpart.randomness.streams import generator

HoldOut = Literal["last", "last_of_class", "random"]
ClientHoldOut = Literal["random", "last", "clients"]


class Division(NamedTuple):
    """Places of the examples that stay and of those that are held out, both ascending int64."""

    kept: Tensor
    held_out: Tensor

    @classmethod
    def by(cls, out: NDArray[np.bool_]) -> Self:
        """Of ``out [n]``: which are held out."""
        return cls(torch.from_numpy(np.flatnonzero(~out)), torch.from_numpy(np.flatnonzero(out)))


def divide(targets: Tensor, points: float, how: HoldOut, data_seed: int = 0, part: int = 0) -> Division:
    """Hold out some of the examples, which have classes ``targets [n]``.

    Args:
        targets: see above.
        points: how many, below n; or below 1: the share of all, rounded.
        how: ``last``: the last ones in the file's order; ``last_of_class``: the last ones of each class;
            ``random``: drawn by ``data_seed``. The last two take of each class in proportion to its size.
        data_seed, part: of the draw, and its number, where one source is divided several times.
    """
    if how not in get_args(HoldOut):
        raise ValueError(f"hold_out is one of {', '.join(get_args(HoldOut))}, got {how!r}.")
    n = len(targets)
    if isinstance(points, bool) or not isinstance(points, (int, float)) or not 0 <= points < n:
        remedy = "give a smaller number, or a share"
        raise ValueError(f"Of {n} training examples, {points!r} cannot be held out; {remedy}.")
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
    return Division.by(out)


def divide_clients(
    clients: Tensor, share: float, how: ClientHoldOut = "random", data_seed: int = 0, part: int = 0
) -> Division:
    """Hold out some of each client's examples, or whole clients: the two ways of LEAF (Caldas et al. 2018).

    Args:
        clients: [n] int64, the number of each example's client.
        share: below 1. Of each client's examples, rounded, so that at least one stays; or of the clients, at
            least one.
        how: ``random``: of each client, drawn by ``data_seed``; ``last``: of each client, the last ones in
            the file's order; ``clients``: whole clients, drawn by ``data_seed``.
        part: number of the draw, where one source is divided several times.
    """
    if how not in get_args(ClientHoldOut):
        fault = f"Where a data set knows its clients, hold_out is one of {', '.join(get_args(ClientHoldOut))}"
        raise ValueError(f"{fault}, got {how!r}.")
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
        fault = "Of a data set that knows its clients a share below 1 is held out, such as 0.2"
        raise ValueError(f"{fault}, got {share!r}.")
    owners, sizes = np.unique(clients.numpy(), return_inverse=True, return_counts=True)[1:]
    random = generator(data_seed, "data.hold_out_of_clients", part)
    if how == "clients":
        count = max(1, round(len(sizes) * share)) if share else 0
        if count >= len(sizes):
            raise ValueError(f"Of {len(sizes)} clients {count} cannot be held out; give a smaller share.")
        out = np.isin(owners, random.permutation(len(sizes))[:count])
    else:
        out = np.zeros(len(owners), dtype=bool)
        ends = np.cumsum(sizes)
        for members in np.split(np.argsort(owners, kind="stable"), ends[:-1]):
            count = min(round(len(members) * share), len(members) - 1)
            chosen = random.permutation(members) if how == "random" else members
            out[chosen[len(members) - count :]] = True
    if share and not out.any():
        remedy = "give a larger one, files of your own for validation and test, or hold_out: clients"
        raise ValueError(f"No client has enough examples for a share of {share:g} to be held out; {remedy}.")
    return Division.by(out)


def with_held_out(
    source: Mapping[str, Dataset], shares: Mapping[str, float], hold_out: HoldOut | ClientHoldOut = "random",
    data_seed: int = 0,
) -> dict[str, Dataset]:  # fmt: skip
    """The parts train, validation and test; missing or empty ones are held out from the training examples,
    the test set first: by :func:`divide_clients` if they know their clients, else by :func:`divide`, in
    proportion by class if the targets are labels."""
    parts = dict(source)
    for number, part in enumerate(("test", "validation")):
        if part in parts and len(parts[part]):
            continue
        train = parts["train"]
        if train.clients is not None:
            kept, out = divide_clients(train.clients, shares[part], hold_out, data_seed, number)  # type: ignore[arg-type]
        else:
            classes = train.targets if has_labels(train) else torch.zeros(len(train), dtype=torch.int64)
            kept, out = divide(classes, shares[part], hold_out, data_seed, number)  # type: ignore[arg-type]
        parts |= {part: train.subset(out), "train": train.subset(kept)}
    return parts
