"""Protocol: what server and clients agree on before the first round, and never change."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpart.assignment import ChunkAssignment
from fedpart.jobs import Job
from fedpart.methods import METHODS, Method
from fedpart.partition import Partition, expected_upload_ratio
from fedpart.rng import generator
from fedpart.settings import FederationSettings
from fedpart.task import Task
from fedpart.update import Update, validate


class Protocol:
    """The policies of a run, functions of (task, settings): the same on the server and every client.

    Args:
        task: what is learned; the method may change it (FedAvg drops the augmentation).
        settings: see :class:`~fedpart.settings.FederationSettings`.
        identity: text that server and clients must share as well, e.g. a hash of the data's configuration.

    Attributes:
        method, task, partition, assignment: built from the arguments.
        agreement: everything that they must agree on, as plain data by name.
        fingerprint: short hash of the agreement; uploads echo it.

    Raises:
        ValueError: see FederationSettings, Partition and ChunkAssignment.
    """

    def __init__(self, task: Task, settings: FederationSettings, identity: str = "") -> None:
        self.settings = settings
        self.method = _build_method(settings)
        self.task = self.method.prepare(task)
        self.chunks = self.method.proportions(settings.chunks)
        parameters = settings.parameters if settings.parameters and len(self.chunks) > 1 else self.chunks
        self.assignment = ChunkAssignment(self.chunks, settings.clients, settings.seed)
        self.partition = Partition(
            self.task.parameter_space(len(self.chunks)),
            parameters,
            scheme=settings.scheme,
            defaults=settings.defaults,
            seed=settings.seed,
            module=self.task.module,
            chain=settings.chain,
        )
        self.expected_upload_ratio = expected_upload_ratio(
            [count / settings.clients for count in self.assignment.counts],
            [size / self.partition.space.size for size in self.partition.sizes],
        )
        self.agreement = self._agreement(identity)
        self.fingerprint = hashlib.sha256(json.dumps(self.agreement, sort_keys=True).encode()).hexdigest()[
            :16
        ]

    def chunk(self, client: int) -> int:
        """Chunk (1..C) of client ``client``; fixed for the run."""
        return self.assignment[client]

    def cohort(self, round: int, available: Sequence[int] | None = None) -> list[int]:
        """Clients of round ``round`` (1..), ascending: a sample without replacement, by client number.

        Args:
            round: the round.
            available: client numbers to choose from; all N if not given. Fewer than the cohort: all of them.
        """
        rng = generator(self.settings.seed, "cohort", round)
        if available is None:
            return sorted(rng.choice(self.settings.clients, self.settings.cohort, replace=False).tolist())
        pool = np.array(sorted(set(available)))
        return sorted(rng.choice(pool, min(self.settings.cohort, len(pool)), replace=False).tolist())

    def plan(self, client: int, round: int) -> list[Job]:
        """What the client is asked to compute in this round."""
        return self.method.plan(self, client, round)

    def client_weight(self, examples: int) -> float:
        """Weight of a client with that many examples in averages."""
        return float(examples) if self.settings.weighting == "examples" else 1.0

    def upload_numbers(self, jobs: Sequence[Job]) -> int:
        """How many numbers the answer to ``jobs`` holds."""
        weights = sum(self.partition.sizes[job.partition - 1] for job in jobs if job.partition)
        return weights + (self.task.psi_space.size if any(job.psi for job in jobs) else 0)

    def check(self, update: Update, jobs: Sequence[Job]) -> None:
        """Refuse an update that does not answer ``jobs``.

        Raises:
            ValueError: see :func:`~fedpart.update.validate`.
        """
        psi_size = self.task.psi_space.size if any(job.psi for job in jobs) else None
        expected = [job.partition for job in jobs if job.partition is not None]
        validate(update, self.partition.sizes, expected, psi_size, self.task.dtype)

    def difference(self, agreement: dict[str, Any]) -> str:
        """How another run's ``agreement`` differs from this one's, for a person; empty if it does not."""
        found = []
        for name, now in self.agreement.items():
            then = agreement.get(name)
            if then != now:
                brief = max(len(repr(then)), len(repr(now))) <= 200 and not name.endswith(_LONG)
                found.append(f"{name} was {then!r}, is {now!r}" if brief else f"the {name} differs")
        return "; ".join(found)

    def _agreement(self, identity: str) -> dict[str, Any]:
        task, partition = self.task, self.partition
        agreed = dataclasses.asdict(self.settings)
        for rim in ("device", "on_client_error"):  # where and how carefully, not what
            del agreed[rim]
        agreed |= {
            name: getattr(task, name) for name in ("samples", "average", "share_dropout_mask", "precision")
        }
        agreed["likelihood"] = task.likelihood_name
        agreed["network"] = repr(task.module)
        agreed["input transforms"] = repr(task.transforms)
        agreed["hyperparameters"] = [(entry.name, list(entry.shape)) for entry in task.psi_space.entries]
        agreed["parameters' shapes"] = [(entry.name, list(entry.shape)) for entry in partition.space.entries]
        buffers = [*task.module.buffers(), *(b for t in task.transforms.values() for b in t.buffers())]
        agreed["partition hash"] = _hash(partition.assignment)
        agreed["default values hash"] = _hash(partition.default, *buffers)
        agreed["data"] = identity
        plain: dict[str, Any] = json.loads(json.dumps(agreed, default=str))
        return plain


_LONG = ("network", "transforms", "shapes", "hash")


def _hash(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _build_method(settings: FederationSettings) -> Method:
    build = METHODS.resolve(settings.method)
    try:
        inspect.signature(build).bind(**settings.method_options)
    except TypeError as error:
        raise ValueError(
            f"The method {settings.method!r} does not take the options {dict(settings.method_options)} "
            f"({error}); its options are {inspect.signature(build)}."
        ) from error
    return build(**settings.method_options)
