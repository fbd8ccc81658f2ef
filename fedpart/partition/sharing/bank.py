"""SuperWeight Networks: layers' weights are linear combinations of templates that they share.

"SuperWeight Ensembles: Automated Compositional Parameter Sharing Across Diverse Architectures" (WACV 2024)
and its authors' code. A bank has the templates of one block; where weights of several sizes belong to one
cluster, the larger ones have the smaller ones' blocks, and one more each."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedpart.checks import require
from fedpart.partition.sharing import layers as of_layers
from fedpart.partition.sharing.composed import SHARINGS, Composed, Recipe, Sharing, Values
from fedpart.randomness.streams import generator

_COUPLED = "alpha"


class Coefficients(nn.Module):
    """``alpha [T]``; several partitions have one vector each, and the sum of theirs counts (App. I.2)."""

    stacked_parameters = {"alpha": "sum"}  # noqa: RUF012

    def __init__(self, alpha: Tensor) -> None:
        super().__init__()
        self.alpha = nn.Parameter(alpha)


@dataclass(frozen=True)
class SuperWeight(Recipe):
    """A layer's weight from blocks, each a linear combination of its bank's templates."""

    chain: tuple[of_layers.Shape, ...]
    banks: tuple[str, ...]
    alphas: tuple[str, ...]

    def weight(self, shared: nn.ModuleDict, own: nn.ModuleDict) -> Tensor:
        blocks = []
        for bank, name in zip(self.banks, self.alphas, strict=True):
            alpha: Any = (own[name] if name in own else shared[name]).alpha
            values: Any = shared[bank].values
            blocks.append(values.t().mv(alpha))
        return of_layers.assembled(blocks, self.chain)


@SHARINGS.register("bank")
class Bank(Sharing):
    """SuperWeights: template banks under a budget of numbers.

    The banks' first templates are the initial weights of the layers that use them; coefficients begin as
    rows of length 1 that are as orthogonal as may be, those of one template as 1. Norms, biases and the last
    layer are each network's own, and so are coefficients, unless they are ``coupled``.

    Args:
        budget: numbers in all banks; None: one template for each bank.
        templates: that a bank has at most.
        clusters: which layers share banks. ``layer``: those of one name; ``depth``: quarters of each network;
            or lists of patterns of names (``conv*``; of the first network alone ``0:conv*``), where a layer
            in none of them is ``layer``.
        coupled: whether the layers of a cluster have the same coefficients.
        keep: patterns of layers that are not composed.
    """

    def __init__(
        self, budget: int | None = None, templates: int = 8,
        clusters: Literal["layer", "depth"] | Sequence[Sequence[str]] = "layer", coupled: bool = False,
        keep: Sequence[str] = (),
    ) -> None:  # fmt: skip
        lists = isinstance(clusters, (list, tuple)) and all(isinstance(of, (list, tuple)) for of in clusters)
        if clusters not in ("layer", "depth") and not lists:
            raise ValueError(f"clusters are layer, depth, or lists of lists of layers, got {clusters!r}.")
        require(isinstance(coupled, bool), f"coupled is true or false, got {coupled!r}.")
        for name, number in (("templates", templates), ("budget", budget)):
            if number is not None and (type(number) is not int or number < 1):
                raise ValueError(f"{name} is a whole number, at least 1, got {number!r}.")
        self.budget, self.templates, self.clusters, self.keep = budget, templates, clusters, keep
        self.coupled = coupled

    def compose(
        self, networks: Sequence[nn.Module], seed: int = 0, plain: Collection[str] = ()
    ) -> list[Composed]:
        layers = of_layers.weight_layers(networks, self.keep, plain)
        for group in () if isinstance(self.clusters, str) else self.clusters:
            of_layers.check_patterns("clusters", group, layers)
        users: dict[str, list[Tensor]] = {}  # of each bank: blocks of the layers that use it
        alphas: dict[str, dict[str, None]] = {}  # of each bank: its coefficients' names
        recipes: list[dict[str, SuperWeight]] = [{} for _ in networks]
        for cluster, uses in self._clusters(layers).items():
            weights = {(i, name): of_layers.weight_of(networks[i], name).detach() for i, name in uses}
            for number, chain in enumerate(of_layers.chains(tuple(w.shape) for w in weights.values())):
                name = f"{cluster}~{number}" if number else cluster
                for (index, layer), weight in weights.items():
                    if tuple(weight.shape) not in chain:
                        continue
                    blocks = {f"{name}:{n}": block for n, block in enumerate(of_layers.cut(weight, chain))}
                    for bank, block in blocks.items():
                        users.setdefault(bank, []).append(block)
                        alphas.setdefault(bank, {})[self._alpha(bank, index, layer)] = None
                    of_layer = tuple(self._alpha(bank, index, layer) for bank in blocks)
                    recipes[index][layer] = SuperWeight(tuple(chain), tuple(blocks), of_layer)
        made = self._modules(users, alphas, seed)
        composed = []
        for network, needed in zip(networks, recipes, strict=True):
            names = dict.fromkeys(name for of in needed.values() for name in (*of.banks, *of.alphas))
            apart = {name for name in names if name not in users and not name.startswith(_COUPLED)}
            shared = {name: made[name] for name in names if name not in apart}
            composed.append(Composed(network, needed, shared, {n: made[n] for n in names if n in apart}))
        return composed

    def _modules(
        self, users: Mapping[str, Sequence[Tensor]], alphas: Mapping[str, Mapping[str, None]], seed: int
    ) -> dict[str, nn.Module]:
        """Banks and coefficients by name."""
        sizes = [len(blocks[0]) for blocks in users.values()]
        budget = sum(sizes) if self.budget is None else self.budget
        counts = _allocated(sizes, [*map(len, users.values())], budget, self.templates)
        modules: dict[str, nn.Module] = {}
        for index, (bank, count) in enumerate(zip(users, counts, strict=True)):
            modules[bank] = Values(_templates(users[bank], count, seed, index))
            rows = torch.ones(len(alphas[bank]), 1)
            if count > 1:
                stream = generator(seed, "coefficients", index)
                rows = nn.functional.normalize(of_layers.orthogonal(len(rows), count, stream), dim=1)
            made = map(Coefficients, rows.to(users[bank][0].dtype))
            modules.update(zip(alphas[bank], made, strict=True))
        return modules

    def _clusters(self, layers: Sequence[Sequence[str]]) -> Mapping[str, list[tuple[int, str]]]:
        """Who belongs to which cluster, in the order of layers, the first network's first."""
        clusters: dict[str, list[tuple[int, str]]] = {}
        groups = () if isinstance(self.clusters, str) else self.clusters
        for index, names in enumerate(layers):
            for place, name in enumerate(names):
                fitting = (
                    f"#{n}"
                    for n, group in enumerate(groups, 1)
                    if any(of_layers.matches(p, index, name) for p in group)
                )
                cluster = next(fitting, of_layers.key(name))
                if self.clusters == "depth":
                    cluster = f"quarter{4 * place // len(names) + 1}"
                clusters.setdefault(cluster, []).append((index, name))
        fault = "No network has a layer whose weight could be composed, besides its last"
        require(clusters, f"{fault}; leave sharing out.")
        return clusters

    def _alpha(self, bank: str, index: int, layer: str) -> str:
        """The name of the coefficients of a layer's block."""
        return f"{_COUPLED}@{bank}" if self.coupled else f"{index}/{of_layers.key(layer)}@{bank}"


def _templates(initial: Sequence[Tensor], count: int, seed: int, index: int) -> Tensor:
    """``[count, s]``: the first layers' own values, then draws with the spread of all of theirs."""
    layers = torch.stack([*initial[:count]])
    if (missing := count - len(layers)) <= 0:
        return layers
    drawn = generator(seed, "templates", index).standard_normal((missing, layers.shape[1]))
    return torch.cat([layers, torch.from_numpy(drawn).to(layers.dtype) * layers.square().mean().sqrt()])


def _allocated(sizes: Sequence[int], uses: Sequence[int], budget: int, most: int) -> list[int]:
    """Templates of each bank (SuperWeight Networks' code, ``_allocate_templates``): one; then, in turn, one
    more if fewer than layers use it; then one more in any case, at most so many, as long as the ``budget``
    suffices."""
    left = budget - sum(sizes)
    if left < 0:
        fault = f"The budget is {budget:,} numbers, but one template for each bank takes {sum(sizes):,}"
        raise ValueError(f"{fault}; raise the budget, or let more layers share a bank (clusters: depth).")
    counts = [1] * len(sizes)
    for wants in (uses, [most] * len(sizes)):
        before: list[int] = []
        while counts != before:
            before = list(counts)
            for bank, size in enumerate(sizes):
                if counts[bank] < min(wants[bank], most) and size <= left:
                    counts[bank] += 1
                    left -= size
    return counts
