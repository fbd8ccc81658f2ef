"""Protocol: what server and clients agree on before the first round, and never change."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpart.assignment import ChunkAssignment
from fedpart.jobs import Job
from fedpart.methods import METHODS, Method
from fedpart.partition import Partition, expected_upload_ratio
from fedpart.rng import generator
from fedpart.settings import FederationSettings
from fedpart.task import Task


class Protocol:
    """The policies of a run, all of them functions of (task, settings): the same on the server and every client.

    Args:
        task: what is learned; the method may change it (FedAvg drops the augmentation).
        settings: see :class:`~fedpart.settings.FederationSettings`.
        identity: text that server and clients must share as well, e.g. a hash of the data's configuration.

    Attributes:
        method, task, partition, assignment: built from the arguments.
        fingerprint: short hash of everything that they must agree on; uploads echo it.

    Raises:
        ValueError: see FederationSettings, Partition and ChunkAssignment.
    """

    def __init__(self, task: Task, settings: FederationSettings, identity: str = "") -> None:
        self.settings = settings
        self.method: Method = METHODS.resolve(settings.method)(**settings.method_options)
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
            self.chunks, [size / self.partition.space.size for size in self.partition.sizes]
        )
        self.fingerprint = hashlib.sha256(self._identity(identity).encode()).hexdigest()[:16]

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
        pool = np.array(sorted(available))
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

    def _identity(self, extra: str) -> str:
        settings: dict[str, Any] = dataclasses.asdict(self.settings)
        for rim in ("device", "on_client_error"):  # where and how carefully, not what
            del settings[rim]
        shapes = [(entry.name, list(entry.shape), entry.copies) for entry in self.partition.space.entries]
        psi = [(entry.name, list(entry.shape)) for entry in self.task.psi_space.entries]
        assignment = hashlib.sha256(self.partition.assignment.numpy().tobytes()).hexdigest()
        task = [self.task.samples, self.task.average, self.task.share_dropout_mask, self.task.likelihood_name]
        return json.dumps([settings, shapes, psi, assignment, task, self.task.precision, extra], default=str)
