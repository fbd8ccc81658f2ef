"""What each of several architectures is worth, and what their ensemble is."""

from typing import Any

import torch
from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.federated.federation import Federation
from fedpart.task.task import Batch
from fedpart.training.costs import multiply_adds


def by_architecture(
    federation: Federation, dataset: Dataset | None, samples: int | None = None
) -> list[dict[str, Any]]:
    """Of each of ``settings.architectures``: its ``model_options``, size and scores.

    Args:
        federation: with architectures.
        dataset: on which they are scored; None: there are no scores.
        samples: see :meth:`.ModelState.evaluate`.

    Returns:
        ``share`` (of the clients), ``clients`` (how many), ``model_options``, ``parameters``,
        ``multiply_adds`` (of one example's pass in one sample, input transforms included; convolutions and
        matrix products alone), ``accuracy`` (None without classes) and ``nll``.
    """
    protocol, found = federation.protocol, []
    for index, architecture in enumerate(protocol.settings.architectures or ()):
        state = federation.of_architecture(index)
        clients = sum(count for kind, (_, count) in protocol.kinds.items() if kind.architecture == index)
        row = {
            "share": architecture["share"],
            "clients": clients,
            "model_options": dict(architecture["model_options"]),
            "parameters": state.partition.space.size,
        }
        if dataset is not None:
            scores = state.evaluate(dataset, samples=samples)
            row["multiply_adds"] = _multiply_adds(state, dataset)
            row |= {"accuracy": scores.get("accuracy"), "nll": scores["nll"]}
        found.append(row)
    return found


def ensemble(federation: Federation, dataset: Dataset, samples: int | None = None) -> dict[str, float]:
    """All architectures together, their probabilities averaged: ``accuracy`` and ``nll``, nats per example.

    Args:
        federation: with architectures and a likelihood of classes, one label per example.
        dataset: at least one example.
        samples: see :meth:`.ModelState.evaluate`.
    """
    total: Tensor | None = None
    members = range(len(federation.protocol.partitions))
    for index in members:
        outputs = torch.cat(list(federation.of_architecture(index).predict(dataset.inputs, samples=samples)))
        probabilities = outputs.double().softmax(1)
        total = probabilities if total is None else total + probabilities
    if total is None:
        raise ValueError("There are no architectures to make an ensemble of.")
    targets = dataset.targets.to(total.device)
    chosen = (total / len(members)).gather(1, targets[:, None]).log()
    right = (total.argmax(1) == targets).double().mean()
    return {"accuracy": right.item(), "nll": -chosen.mean().item()}


def _multiply_adds(state: Federation, dataset: Dataset) -> int:
    task, named = state.task.with_samples(1), state.tensors()

    def compute(examples: int) -> None:
        places = torch.zeros(examples, dtype=torch.int64)
        task.predict(named, state.psi, Batch(*dataset.batch(places, state.w.device)), None)

    return multiply_adds(compute)
