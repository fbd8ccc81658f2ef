"""The diagonal Laplace evidence of a network in training."""

from typing import Literal

import torch

from fedpart.centralised.training import Training
from fedpart.checks import require
from fedpart.data.dataset import Dataset
from fedpart.methods.evidence.laplace import DiagonalLaplace, diagonal_laplace, is_random
from fedpart.training.optimisers import AdamWSettings

_TRIED = 4  # examples


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
