"""Which layers of an ensemble share, learned from gradients (SuperWeight Networks, Teterwak et al. 2024).

Both stages follow the authors' text. The gradients are those of a whole data set, where their code takes one
batch for the first stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.models.ensembles import Ensemble
from fedpart.randomness.noise import Noise
from fedpart.sharing import Composed
from fedpart.sharing.bank import SuperWeight
from fedpart.sharing.blocks import Shape, chains, cut
from fedpart.sharing.clusters import crop_similarity, merged
from fedpart.task.gradients import Point, gradients
from fedpart.task.jobs import Job
from fedpart.task.task import Batch, Task
from fedpart.training.state import ModelState, rows_at_once

Layer = tuple[int, str]
"""A member's number, and the name of a layer of its network."""

_STEP = 0.05  # by which tau is lowered where a budget does not suffice


def learned_clusters(
    state: ModelState, dataset: Dataset, tau: float = 0.1, budget: int | None = None
) -> list[list[str]]:
    """The first stage: clusters of layers whose weights have similar gradients.

    Layers of the largest member that share a bank now are merged by :func:`.merged`. A layer of a member with
    the same layers joins its namesake, any other one the most similar layer that it shares a bank with.

    Args:
        state: a trained ensemble, composed by :class:`.Bank`; ``clusters: depth`` and ``coupled: true`` are
            what the authors begin with.
        dataset: on whose sum of losses gradients are taken, e.g. that of the first chunk.
        tau: similarities above it unite.
        budget: numbers for all banks; tau is lowered by 0.05 until one template for each bank fits.

    Returns:
        What :class:`.Bank` takes as ``clusters``: names of layers, with the number of their member. Training
        then begins anew.

    Raises:
        TypeError: the members are not composed by a bank.
        ValueError: not even tau = -1 fits the budget.
    """
    gradients, banks = weight_gradients(state, dataset), _banks(state)
    sizes = [sum(part.numel() for (i, _), part in gradients.items() if i == m) for m in _members(gradients)]
    largest = sizes.index(max(sizes))
    base = [layer for layer in gradients if layer[0] == largest]
    similarities = {
        (one, other): crop_similarity(gradients[one], gradients[other])
        for one, other in combinations(base, 2)
        if banks[one] == banks[other]
    }
    joined = {layer: _counterpart(layer, base, gradients, banks) for layer in gradients}
    while True:
        groups = merged(similarities, tau, base)
        whole = [[layer for layer, one in joined.items() if one in group] for group in groups]
        needed = sum(_one_template(gradients[layer].shape for layer in group) for group in whole)
        if budget is None or needed <= budget:
            return [_names(group) for group in whole]
        if tau < -1:
            raise ValueError(
                f"The budget is {budget:,} numbers, but one template for each bank takes {needed:,} even "
                f"where all layers that shared a bank are one cluster; raise the budget."
            )
        tau -= _STEP


def learned_coupling(state: ModelState, dataset: Dataset, beta: float = 0.9) -> list[list[str]]:
    """The second stage: layers with the same coefficients keep them together where their gradients agree.

    Args:
        state: a trained ensemble, composed by :class:`.Bank` with ``coupled``.
        dataset: see :func:`learned_clusters`.
        beta: similarities of the coefficients' gradients above it unite.

    Returns:
        What :class:`.Bank` takes as ``coupled``, groups of two layers or more. Training then begins anew,
        where the authors' goes on.

    Raises:
        TypeError: the members are not composed by a bank.
    """
    recipes, wanted = _recipes(state), dict[Layer, Tensor]()
    modules: Any = _ensemble(state).members
    for (index, name), gradient in weight_gradients(state, dataset).items():
        recipe, shared = recipes[index, name], modules[index].shared
        blocks = zip(recipe.banks, cut(gradient, recipe.chain), strict=True)
        wanted[index, name] = torch.cat([shared[bank].values.detach() @ block for bank, block in blocks])
    similarities = {
        (one, other): crop_similarity(wanted[one], wanted[other])
        for one, other in combinations(wanted, 2)
        if recipes[one].alphas[0] == recipes[other].alphas[0]
    }
    return [_names(group) for group in merged(similarities, beta, wanted) if len(group) > 1]


def weight_gradients(state: ModelState, dataset: Dataset) -> dict[Layer, Tensor]:
    """Gradients of the composed weights, by member and layer: of the sum of cross-entropies, in inference.

    Args:
        state: whose network is an :class:`.Ensemble` of :class:`.Composed` members.
        dataset: at least one example.

    Raises:
        TypeError: it is another network.
    """
    found: dict[Layer, Tensor] = {}
    for index, member in enumerate(_ensemble(state).members):
        assert isinstance(member, Composed)
        task = Task(member.plain(), samples=1)  # the composed weights are its parameters
        space, psi = task.parameter_space(1), task.psi_space.initial()
        point, total = Point(space, space.initial()), torch.zeros(space.size)
        size = rows_at_once(total.device, 1)
        for start in range(0, len(dataset), size):
            batch = Batch(*dataset.batch(slice(start, start + size)))
            mean = gradients(task, _at_rest, Job(subnetwork=1, partition=1), point, psi, batch, None).theta
            assert mean is not None
            total += batch.examples * mean
        named = space.tensors(total)
        found |= {(index, name): named[f"{name}.weight"] for name in member.recipes}
    return found


def _at_rest(
    task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
) -> Tensor:
    """The loss in inference."""
    return task.loss(w, psi, batch, noise, dropout=False)


def _ensemble(state: ModelState) -> Ensemble:
    module = state.module()
    if not isinstance(module, Ensemble) or not all(isinstance(one, Composed) for one in module.members):
        raise TypeError(
            f"The network is a {type(module).__name__} whose members are not composed; build it with model: "
            f"ensemble and kind: composed."
        )
    return module


def _recipes(state: ModelState) -> dict[Layer, SuperWeight]:
    found: dict[Layer, SuperWeight] = {}
    for index, member in enumerate(_ensemble(state).members):
        for name, recipe in member.recipes.items():  # type: ignore[operator,union-attr]
            if not isinstance(recipe, SuperWeight):
                raise TypeError(
                    f"{name!r} is composed by a {type(recipe).__name__}; use sharing of kind bank."
                )
            found[index, name] = recipe
    return found


def _banks(state: ModelState) -> dict[Layer, str]:
    """The bank of each layer's first block, which layers of a cluster have in common."""
    return {layer: recipe.banks[0] for layer, recipe in _recipes(state).items()}


def _members(layers: Iterable[Layer]) -> range:
    return range(1 + max(index for index, _ in layers))


def _counterpart(
    layer: Layer, base: Sequence[Layer], gradients: Mapping[Layer, Tensor], banks: Mapping[Layer, str]
) -> Layer:
    """The layer of the largest member whose cluster a layer joins; itself, if there is none."""
    index, name = layer
    if layer in base:
        return layer
    same = [one for one in base if banks[one] == banks[layer]]
    names = {other for member, other in gradients if member == index}
    if names == {other for _, other in base}:
        return next(one for one in base if one[1] == name)
    similar = {one: crop_similarity(gradients[one], gradients[layer]) for one in same}
    return max(similar, key=similar.__getitem__, default=layer)


def _one_template(shapes: Iterable[Shape]) -> int:
    """Numbers of a cluster's banks, one template each."""
    return sum(prod(chain[-1]) for chain in chains(tuple(shape) for shape in shapes))


def _names(group: Iterable[Layer]) -> list[str]:
    return [f"{index}:{name}" for index, name in group]
