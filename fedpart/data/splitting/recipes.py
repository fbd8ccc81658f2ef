"""Recipes that divide examples among clients, each a :class:`.Split`."""

import heapq
import math
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedpart.checks import require
from fedpart.randomness.streams import generator
from fedpart.registry import Registry

Ints = NDArray[np.int64]
Shards = list[Ints]


class Split(Protocol):
    """Divides n examples among clients.

    Args:
        groups: [n] integers: the labels, or for rotated data the angle bins.
        clients: number of shards, at most n.
        alpha: concentration of the Dirichlet; small is skewed.
        seed: the data seed.

    Returns:
        One sorted int64 array of example indices per client: together a partition of range(n), with at least
        one example each.

    Raises:
        ValueError: more clients than examples, alpha not above 0, or groups that are not [n] integers.
    """

    def __call__(self, groups: ArrayLike | Tensor, clients: int, alpha: float, seed: int) -> Shards: ...


SPLITS: Registry[Split] = Registry("split")

BINS = 10  # of angles (App. J.2)
_WHOLE = 50_000  # training examples of MNIST in the paper, of which it takes subsets

Counts = Callable[[Ints, int, float, np.random.Generator], Ints]


def _recipe(name: str, stream: str | None = None) -> Callable[[Counts], Split]:
    """Registers a recipe that returns counts ``[clients, L]``, how many examples of each label a client gets.
    A client that comes out empty takes one random example from the then largest one."""

    def register(counted: Counts) -> Split:
        @wraps(counted)
        def split(groups: ArrayLike | Tensor, clients: int, alpha: float, seed: int) -> Shards:
            labels, sizes = _labels(groups, clients)
            random = generator(seed, f"split.{stream or name}")
            counts = counted(sizes, clients, alpha, random)
            owner = np.empty(len(labels), dtype=np.int64)  # of every example; drawn to meet the counts
            by_label = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts.sum(0))[:-1])
            for label, members in enumerate(by_label):
                owner[random.permutation(members)] = np.repeat(np.arange(clients), counts[:, label])
            _fill_empty(owner, clients, random)
            return _shards(owner, clients)

        return SPLITS.register(name)(split)

    return register


@_recipe("per_label")
def dirichlet_per_label(sizes: Ints, clients: int, alpha: float, random: np.random.Generator) -> Ints:
    """For each label, proportions over the clients from a symmetric Dirichlet; shards of unequal size.

    The recipe of Yurochkin et al. 2019 and of most later libraries. A label's n_l examples are dealt in
    counts within one of n_l p_i that equal it on average (systematic sampling: one random offset per label).
    """
    return np.stack([_systematic(_dirichlet(random, alpha, clients), size, random) for size in sizes], 1)


@_recipe("per_client")
def dirichlet_per_client(sizes: Ints, clients: int, alpha: float, random: np.random.Generator) -> Ints:
    """For each client, a label mixture from Dirichlet(alpha, ..., alpha); equal sizes, to within one.

    The recipe of Hsu et al. 2019, used by Reddi et al. 2020, with alpha per label as most libraries read it.
    One client after the other draws its mixture and takes its examples from it without replacement; when a
    label runs out, the mixture is renormalised over what is left. The first n mod clients hold one more.
    """
    left, examples = sizes.copy(), int(sizes.sum())
    counts = np.zeros((clients, len(sizes)), dtype=np.int64)
    for client in range(clients):
        mixture = _dirichlet(random, alpha, len(sizes))
        wanted = examples // clients + (client < examples % clients)
        while wanted:
            # Drawing all at once and drawing again what was refused is drawing one by one, in distribution.
            mixture = np.where(left > 0, mixture, 0.0)
            total = mixture.sum()
            share = mixture / total if total > 0 else left / left.sum()  # no label of its mixture is left
            taken = np.minimum(random.multinomial(wanted, share), left)
            counts[client] += taken
            left -= taken
            wanted -= int(taken.sum())
    return counts


_equal_sizes: Counts = dirichlet_per_client.__wrapped__  # type: ignore[attr-defined]


@_recipe("per_client_total", "per_client")
def dirichlet_per_client_total(sizes: Ints, clients: int, alpha: float, random: np.random.Generator) -> Ints:
    """As ``dirichlet_per_client``, with alpha shared by the L labels: Dirichlet(alpha/L, ..., alpha/L).

    The formula of Hsu et al. 2019 to the letter, Dirichlet(alpha p) with p uniform. More skewed: at alpha
    0.1 and 1,250 MNIST points on 100 clients, three in four hold a single digit, as App. J.2 says of most
    clients; of the other recipes' clients, fewer than one in five do."""
    return _equal_sizes(sizes, clients, alpha / len(sizes), random)


@_recipe("per_client_shares")
def dirichlet_shares_per_client(sizes: Ints, clients: int, alpha: float, random: np.random.Generator) -> Ints:
    """Mixtures as ``dirichlet_per_client_total`` draws them, each label dealt in proportion; sizes differ.

    Client i gets the share q_il / sum_j q_jl of label l, where q_i is its mixture; counts are as in
    ``dirichlet_per_label``. At alpha 0.1 both remarks of App. J on MNIST hold: most clients have a single
    digit, and at 5,000 points few have more than 64 examples. A label in nobody's mixture is dealt evenly.
    """
    mixtures = np.stack([_dirichlet(random, alpha / len(sizes), len(sizes)) for _ in range(clients)])
    mixtures[:, mixtures.sum(0) == 0] = 1.0
    shares = (mixtures / mixtures.sum(0)).T
    return np.stack([_systematic(*of_label, random) for of_label in zip(shares, sizes, strict=True)], 1)


@_recipe("per_client_subset")
def dirichlet_subset_per_client(sizes: Ints, clients: int, alpha: float, random: np.random.Generator) -> Ints:
    """As if the examples were a random subset of 50,000 that ``dirichlet_per_client_total`` has dealt.

    So sizes differ, and a client's examples are a random part of what it would have of all. The 50,000 have
    the labels of the examples, in proportion; from 50,000 examples on they are the examples. At alpha 0.1
    both remarks of App. J on MNIST hold, see ``dirichlet_shares_per_client``."""
    examples = sizes.sum()
    whole = sizes if examples >= _WHOLE else -(-sizes * _WHOLE // examples)
    counts = _equal_sizes(whole, clients, alpha / len(sizes), random)
    for label, size in enumerate(sizes):
        counts[:, label] = random.multivariate_hypergeometric(counts[:, label], size, method="marginals")
    return counts


@SPLITS.register("iid")
def iid(groups: ArrayLike | Tensor, clients: int, alpha: float, seed: int) -> Shards:
    """Shuffled and dealt in shards of equal size, to within one; alpha and the labels are not used."""
    labels, _ = _labels(groups, clients)
    order = generator(seed, "split.iid").permutation(len(labels))
    return [np.sort(shard).astype(np.int64) for shard in np.array_split(order, clients)]


@SPLITS.register("natural")
def natural(groups: ArrayLike | Tensor, clients: int, alpha: float, seed: int) -> Shards:
    """Everybody keeps what is theirs: the groups are the numbers of the clients that the data set knows.
    Alpha and the seed are not used."""
    owners, sizes = _labels(groups, 1)
    if len(sizes) != clients:
        known = len(sizes)
        remedy = f"set clients: {known}"
        raise ValueError(f"The data have examples of {known} clients, but clients is {clients}; {remedy}.")
    return _shards(owners, clients)


def angle_bins(angles: ArrayLike | Tensor, bins: int = BINS, max_angle: float = math.pi) -> Ints:
    """``[n]`` int64 in 0..bins-1, the groups for any of the recipes: the equal bin over [-max_angle,
    max_angle] that each angle, ``[n]`` radians, lies in."""
    values = np.asarray(angles, dtype=np.float64)
    if bins < 1 or not max_angle > 0:
        raise ValueError(f"bins must be 1 or more and max_angle above 0, got {bins} and {max_angle}.")
    if values.size and not bool((np.abs(values) <= max_angle + 1e-5).all()):  # also false for NaN
        remedy = "convert degrees with numpy.deg2rad"
        raise ValueError(f"Angles must be finite radians within +-{max_angle:.4f}; {remedy}.")
    numbers = np.floor((values + max_angle) / (2 * max_angle) * bins)
    return np.clip(numbers, 0, bins - 1).astype(np.int64)


def _labels(groups: ArrayLike | Tensor, clients: int) -> tuple[Ints, Ints]:
    """Labels renumbered 0..L-1 ([n]), and how many examples each has ([L])."""
    values = np.asarray(groups)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        fault = f"A split needs one integer group per example, got {values.dtype} {list(values.shape)}"
        raise ValueError(f"{fault}; put angles into angle_bins first.")
    fault = f"{clients} clients cannot share {len(values)} examples with at least one each"
    require(1 <= clients <= len(values), f"{fault}; use between 1 and {len(values)} clients, or more points.")
    _, labels, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return labels.astype(np.int64), sizes.astype(np.int64)


def _dirichlet(random: np.random.Generator, alpha: float, size: int) -> NDArray[np.float64]:
    """One draw of a symmetric Dirichlet, [size]."""
    remedy = "0.1 is strongly skewed, 100 almost even"
    require(0 < alpha < math.inf, f"alpha must be a finite number above 0, got {alpha}; {remedy}.")
    draw = random.dirichlet(np.full(size, alpha))
    fault = f"alpha = {alpha} is beyond what a Dirichlet over {size} can be drawn with"
    require(bool(np.isfinite(draw).all()), f"{fault}; use 0.001 to 1e6.")
    return draw


def _systematic(shares: NDArray[np.float64], size: np.int64, random: np.random.Generator) -> Ints:
    """Whole counts that sum to ``size``, each within one of its share of it; one random offset for all."""
    bounds = np.cumsum(shares) * size + random.random()
    bounds[-1] = size
    return np.diff(np.minimum(np.floor(bounds), size), prepend=0).astype(np.int64)


def _fill_empty(owner: Ints, clients: int, random: np.random.Generator) -> None:
    """Give every empty client a random example of the then largest client (ties: lowest number)."""
    sizes = np.bincount(owner, minlength=clients)
    empty = np.flatnonzero(sizes == 0)
    largest = [(-int(size), client) for client, size in enumerate(sizes)]
    heapq.heapify(largest)
    gives: Counter[int] = Counter()
    for _ in empty:
        size, donor = largest[0]
        heapq.heapreplace(largest, (size + 1, donor))
        gives[donor] += 1
    if gives:
        shards = _shards(owner, clients)
        passed_on = [random.choice(shards[donor], count, replace=False) for donor, count in gives.items()]
        owner[random.permutation(np.concatenate(passed_on))] = empty


def _shards(owner: Ints, clients: int) -> Shards:
    """The sorted example indices of every client."""
    order = np.argsort(owner, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])
