"""Further scores: what ensembles are worth, what corrupted images do; and diagonal Laplace evidence."""

from itertools import combinations
from typing import Any, Literal

import torch
from torch import Tensor

from fedpart.centralised.training import Training
from fedpart.checks import require
from fedpart.data.dataset import Dataset
from fedpart.data.transformed import CORRUPTIONS, SEVERITIES, corrupted
from fedpart.methods.evidence.laplace import DiagonalLaplace, diagonal_laplace, is_random
from fedpart.nn.likelihoods import EnsembleClassification
from fedpart.nn.models.ensembles import Ensemble
from fedpart.training.optimisers import AdamWSettings
from fedpart.training.plain import multiply_adds
from fedpart.training.state import ModelState

_TRIED = 4  # examples on which it is seen whether there is a Laplace evidence
MOST = 8  # members, of which every subset is scored

Members = tuple[int, ...]
_SCORES = ("accuracy", "nll", "calibration_error")


def of_ensemble(state: ModelState, dataset: Dataset) -> dict[str, Any]:
    """Scores of an ensemble, and of what a device with less time would compute of it (anytime inference).

    ``parameters`` are trained numbers; ``accuracy`` and ``nll`` (nats per example) of averaged probabilities,
    with what :meth:`.EnsembleClassification.of_members` tells; ``alone`` is each member's own accuracy.
    ``subsets`` has every subset of up to eight members, or each member and the first 2, 3, .. of more: its
    ``members`` (from 0), ``accuracy``, ``nll``, and ``multiply_adds`` of a further example in one sample (of
    convolutions and matrix products alone; None for a network that is no :class:`.Ensemble`).

    Raises:
        TypeError: the task has another likelihood than ``ensemble``.
    """
    outputs = torch.cat([out.cpu() for out in state.predict(dataset.inputs)])
    count = outputs.shape[1]
    if count <= MOST:
        chosen = [members for size in range(count) for members in combinations(range(count), size + 1)]
    else:
        chosen = [*((member,) for member in range(count)), *(tuple(range(n)) for n in range(2, count + 1))]
    costs = _costs(state, dataset, chosen)
    with torch.no_grad(), state.task.likelihood_at(state.psi.cpu()) as likelihood:
        if not isinstance(likelihood, EnsembleClassification):
            raise TypeError(f"The likelihood is {likelihood!r}; an ensemble has Task(likelihood='ensemble').")
        rows: list[dict[str, Any]] = []
        for members in chosen:
            logits = outputs[:, list(members)]
            right = likelihood.hits(logits, dataset.targets)
            rows.append(
                {
                    "members": list(members),
                    "multiply_adds": costs.get(members),
                    "accuracy": right.double().mean().item(),
                    "nll": likelihood.of_each(logits, dataset.targets).double().mean().item(),
                }
            )
        more = likelihood.of_members(outputs, dataset.targets)
    whole = rows[-1]
    return {
        "parameters": state.task.counts["trained"],
        "accuracy": whole["accuracy"],
        "nll": whole["nll"],
        **more,
        "alone": [row["accuracy"] for row in rows[:count]],
        "subsets": rows,
    }


def of_corrupted(state: ModelState, dataset: Dataset, seed: int = 0) -> dict[str, Any]:
    """Scores on images that are corrupted here, with noise from ``seed``; see :func:`.corrupted`.

    ``mean`` has ``accuracy``, ``nll`` and ``calibration_error``, as far as the likelihood has them, each the
    mean over five corruptions at five severities; ``by_corruption`` of each the scores by severity.
    """
    by_corruption: dict[str, list[dict[str, float]]] = {}
    for name in CORRUPTIONS:
        sets = (corrupted(dataset, name, severity, seed) for severity in SEVERITIES)
        scores = (state.evaluate(images, measures=True) for images in sets)
        by_corruption[name] = [{key: of[key] for key in _SCORES if key in of} for of in scores]
    every = [row for rows in by_corruption.values() for row in rows]
    mean = {key: sum(row[key] for row in every) / len(every) for key in every[0]}
    return {"mean": mean, "by_corruption": by_corruption}


def _costs(state: ModelState, dataset: Dataset, chosen: list[Members]) -> dict[Members, int]:
    """Multiply-adds of each subset; where those of the members add up to all, the others are sums."""
    module = state.module().requires_grad_(False)  # which the counter would hook
    if not isinstance(module, Ensemble) or not isinstance(dataset.inputs, Tensor):
        return {}
    module, example = module.to(state.task.dtype), dataset.inputs[:1].to(state.task.dtype)

    def cost(members: Members) -> int:
        rest = [1] * (example.ndim - 1)
        return multiply_adds(lambda rows: module(example.repeat(rows, *rest), only=members))

    everyone = tuple(range(len(module)))
    alone = {members: cost(members) for members in chosen if len(members) == 1}
    if sum(alone.values()) == cost(everyone):
        return {members: sum(alone[member,] for member in members) for members in chosen}
    return {members: cost(members) for members in chosen}


def laplace_evidence(training: Training) -> float:
    """Diagonal Laplace evidence of a plain network as it stands, in nats; for ``Training(evidence=...)``.

    Hyperparameters inside the network are constants. The prior is the one that the weight decay stands for;
    the best one where there is none, or where it is decoupled (AdamW). A ValueError says why there is no such
    evidence."""
    data, settings = training.examples(1, len(training.shares)), training.settings
    coupled = bool(settings.weight_decay) and not isinstance(settings.optimiser, AdamWSettings)
    precision: float | Literal["optimised"] = settings.weight_decay * len(data) if coupled else "optimised"
    return _of_training(training, data, precision).log_marginal_likelihood


def check_laplace(training: Training) -> None:
    """Refuse what has no Laplace evidence, whatever it learns: tried on a few examples."""
    data = training.examples(1, len(training.shares))
    _of_training(training, data.subset(range(min(_TRIED, len(data)))), 1.0)


def _of_training(
    training: Training, data: Dataset, precision: float | Literal["optimised"]
) -> DiagonalLaplace:
    plain = (
        "The Laplace evidence is of a plain network; use it with the method 'none', and L_ML with partitions."
    )
    require(training.partition.chunks == 1, plain)
    task = training.task
    changing = is_random(lambda: task.transformed(training.psi, data.inputs))
    same = (
        "A Laplace approximation needs inputs that are the same each time, but they are transformed at random"
    )
    require(not changing, f"{same}; leave out learned masks and augmentations.")
    module = training.module()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in task.psi_names)
    with torch.no_grad(), torch.random.fork_rng():
        inputs = task.transformed(training.psi, data.inputs).cpu()
    return diagonal_laplace(module, Dataset(inputs, data.targets), precision)
