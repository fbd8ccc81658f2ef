"""Protocol: what server and clients agree on before the first round, and never change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from torch import Tensor

from fedpart.codecs import CODECS
from fedpart.federated.assignment import ChunkAssignment
from fedpart.federated.caps import CapAssignment
from fedpart.federated.settings import FederationSettings
from fedpart.methods.base import build_method
from fedpart.methods.views import ClientView
from fedpart.parameters.partition import Partition
from fedpart.parameters.proportions import expected_upload_ratio
from fedpart.randomness.streams import generator
from fedpart.task.gradients import psi_mask
from fedpart.task.jobs import Job
from fedpart.task.task import Task
from fedpart.training.agreement import agreement
from fedpart.updates.checks import validate
from fedpart.updates.update import Update


class Protocol:
    """The policies of a run, functions of (task, settings): the same on the server and every client.

    Args:
        task: what is learned; the method may change it (FedAvg drops the augmentation).
        settings: see :class:`.FederationSettings`.
        identity: text that server and clients must share as well, e.g. a hash of the data's configuration.

    Attributes:
        method, task, partition, assignment, caps: built from the arguments.
        codec: in which clients' changes of weights travel; None: as they are.
        psi_mask: ``[P]``, 1 where psi is learned.
        agreement: everything that they must agree on, as plain data by name.
        fingerprint: short hash of the agreement; uploads echo it.

    Raises:
        ValueError: see FederationSettings, Partition and ChunkAssignment; or safeguards that do not fit the
            method; or caps with which a client computes nothing, or nobody trains a partition.
    """

    def __init__(self, task: Task, settings: FederationSettings, identity: str = "") -> None:
        self.settings = settings
        self.method = build_method(settings.method, settings.method_options)
        settings.check_feedback(self.method.held_out)
        self.task = self.method.prepare(task)
        self.psi_mask = psi_mask(self.task, self.method.trained_psi(self.task))
        self.chunks = self.method.proportions(settings.chunks)
        settings.check_caps(len(self.chunks))
        self.assignment = ChunkAssignment(self.chunks, settings.clients, settings.seed)
        self.caps = CapAssignment(
            settings.caps, settings.caps_by, self.assignment, settings.clients, settings.seed
        )
        self.partition = self.method.partition(self.task, self.chunks, settings)
        self._norms = None if settings.clip is None else settings.clip.norms(len(self.chunks))
        self.codec = None if settings.upload is None else CODECS.resolve(settings.upload)()
        self.expected_upload_ratio = self._expected_upload_ratio()
        if settings.caps is not None:
            self._check_caps()
        self.agreement = agreement(self.task, self.partition, settings.deciding(), identity)
        self.fingerprint = hashlib.sha256(json.dumps(self.agreement, sort_keys=True).encode()).hexdigest()[
            :16
        ]

    def chunk(self, client: int) -> int:
        """Chunk (1..C) of client ``client``; fixed for the run."""
        return self.assignment[client]

    def cap(self, client: int) -> int:
        """The largest subnetwork (1..C) that the device of ``client`` computes; fixed for the run."""
        return self.caps[client]

    def cohort(
        self,
        round: int,
        available: Sequence[int] | None = None,
        *,
        size: int | None = None,
        without: Collection[int] = (),
        turn: int = 0,
    ) -> list[int]:
        """Clients of round ``round`` (1..), ascending: a sample without replacement, by client number.

        Args:
            available: client numbers to choose from; all N if not given. Fewer than are wanted: all of them.
            size: how many are wanted; the cohort if not given.
            without: clients that cannot be chosen.
            turn: 0.., another sample of the same round.
        """
        rng = generator(self.settings.seed, "cohort", round, turn)
        wanted = self.settings.cohort if size is None else size
        pool = self.settings.clients if available is None else np.array(sorted(set(available)), np.int64)
        there = pool if isinstance(pool, int) else len(pool)
        drawn = rng.choice(pool, min(wanted + len(without), there), replace=False).tolist()
        return sorted([client for client in drawn if client not in without][:wanted])

    @property
    def scoring_task(self) -> Task:
        """The task as clients evaluate it, with ``evaluation_samples``."""
        return self.task.with_samples(self.settings.evaluation_samples)

    def task_of(self, client: int) -> Task:
        """What ``client`` learns: the same for all, today."""
        return self.task

    def partition_of(self, client: int) -> Partition:
        """How the parameters of ``client`` are divided: the same for all, today."""
        return self.partition

    def view(self, client: int, round: int, psi: Tensor | None = None) -> ClientView:
        """What the method sees of ``client`` in ``round`` (1..); ``psi [P]``: the server's."""
        task, chunk = self.task_of(client), self.chunk(client)
        of_run = round, self.settings.seed, task, self.settings.local
        return ClientView(client, chunk, len(self.chunks), self.cap(client), *of_run, psi)

    def plan(self, client: int, round: int) -> list[Job]:
        """What the client is asked to compute in this round."""
        return self.method.plan(self.view(client, round))

    def _expected_upload_ratio(self) -> float:
        """Of all clients to FedAvg's (App. J.1), those of each cap with its partitions alone."""
        whole = self.partition.space.size * self.task.dtype.itemsize
        sizes = [self.weight_bytes(size) / whole for size in self.partition.sizes]
        total, kinds, chunks = 0.0, self.caps.kinds, range(1, len(self.chunks) + 1)
        for cap in sorted({cap for _, cap in kinds}):
            clients = [kinds.get((k, cap), (0, 0))[1] / self.settings.clients for k in chunks]
            total += expected_upload_ratio(clients, sizes[:cap])
        return total

    def _check_caps(self) -> None:
        """Refuse caps with which a client has nothing to do, or a partition nobody who trains it."""
        remedy = "give more clients larger caps, or use fewer chunks"
        if self.settings.caps_by != "chunk":
            remedy = f"set caps_by: chunk, {remedy}"
        trained: set[int | None] = set()
        for (chunk, cap), (client, count) in self.caps.kinds.items():
            jobs = self.plan(client, 1)
            if not jobs:
                others = f" and {count - 1} more" if count > 1 else ""
                psi = f", and psi's gradient one of {chunk - 1}" if self.task.psi_space.size else ""
                raise ValueError(
                    f"Client {client}{others} of chunk {chunk} can compute nothing with a cap of {cap}: to "
                    f"train takes one of {chunk}{psi}; {remedy}."
                )
            if any(job.subnetwork > cap for job in jobs):
                raise ValueError(
                    f"The method {self.settings.method!r} has clients compute more than their caps; make its "
                    f"plan() heed ClientView.cap, or leave caps out."
                )
            trained |= {job.partition for job in jobs}
        if idle := sorted(set(range(1, len(self.chunks) + 1)) - trained):
            raise ValueError(
                f"No client trains partition {idle[0]}, which takes a chunk up to {idle[0]} and a cap of "
                f"{idle[0]} or more; {remedy}."
            )

    def client_weight(self, examples: int) -> float:
        """Weight of a client with that many examples in averages."""
        return float(examples) if self.settings.weighting == "examples" else 1.0

    def upload_numbers(self, client: int, jobs: Sequence[Job]) -> int:
        """How many numbers the client's answer to ``jobs`` holds."""
        weights, psi = self.upload_sizes(client, jobs)
        return sum(weights.values()) + (psi or 0)

    def upload_bytes(self, client: int, jobs: Sequence[Job]) -> int:
        """Size of the client's answer to ``jobs``, as a message; where nothing is sent, it would be."""
        weights, psi = self.upload_sizes(client, jobs)
        of_psi = (psi or 0) * self.task_of(client).dtype.itemsize
        return sum(map(self.weight_bytes, weights.values())) + of_psi + _UPLOAD_HEADER

    def weight_bytes(self, numbers: int) -> int:
        """In how many bytes the change of a partition of so many numbers travels."""
        return numbers * self.task.dtype.itemsize if self.codec is None else self.codec.size(numbers)

    def upload_sizes(self, client: int, jobs: Sequence[Job]) -> tuple[dict[int, int], int | None]:
        """Numbers of each partition in the client's answer to ``jobs``, ascending; those of psi, or None."""
        trained, sizes = (job.partition for job in jobs), self.partition_of(client).sizes
        weights = {j: sizes[j - 1] for j in sorted(j for j in trained if j is not None)}
        psi = self.task_of(client).psi_space.size if any(job.psi for job in jobs) else None
        return weights, psi

    def unseen(self, client: int, jobs: Iterable[Job]) -> Job | None:
        """The job whose loss is the client's term of L_ML: it trains nothing, and its subnetwork has never
        seen the client's chunk. None: there is none, or privacy keeps the loss with the client.
        """
        if self.settings.privacy is not None:
            return None
        chunk = self.chunk(client)
        return next((job for job in jobs if job.partition is None and job.subnetwork < chunk), None)

    def check(self, client: int, update: Update, jobs: Sequence[Job]) -> None:
        """Refuse an update of ``client`` that does not answer ``jobs``.

        Raises:
            Refusal: see :func:`.validate`.
        """
        weights, psi = self.upload_sizes(client, jobs)
        validate(update, weights, psi, self.task_of(client).dtype, self.settings.max_examples)

    def outgoing(self, update: Update, client: int, round: int, seconds: float = 0.0) -> Update:
        """A client's update as it leaves the client: clipped, encoded, in place, and with what it has cost.

        With a codec its numbers are those that the server will read.

        Args:
            client, round: whose update it is; the codec's randomness is a function of them.
            seconds: that it took; 0: not known. With privacy neither these nor ``visited`` are told.
        """
        self._clip(update)
        if self.codec is not None:
            for j, delta in update.deltas.items():
                rng = generator(self.settings.seed, "upload", client, round, j)
                update.encoded[j] = data = self.codec.encode(delta, rng)
                update.deltas[j] = self.codec.decode(data, len(delta), delta.dtype)
        update.seconds = seconds
        if self.settings.privacy is not None:
            update.visited, update.seconds = 0, 0.0
        return update

    def _clip(self, update: Update) -> None:
        """Scale down what is longer than the settings' norms, in place."""
        if self._norms is not None and self.settings.clip is not None:
            update.clip(self._norms, self.settings.clip.psi)

    def accept(self, client: int, update: Update, jobs: Sequence[Job]) -> Update:
        """The update of ``client``, checked, as a term of the cohort's sum; see :meth:`term`.

        Raises:
            Refusal: see :meth:`check`.
        """
        self.check(client, update, jobs)
        return self.term(update)

    def term(self, update: Update) -> Update:
        """A client's checked update as a term of the cohort's sum: clipped and weighted, in place.

        What it has to say about frozen hyperparameters, which is nothing if it is honest, is left out.
        """
        if update.psi is not None:
            update.psi.mul_(self.psi_mask.to(update.psi.device))
        self._clip(update)
        equal = self.settings.privacy is not None or self.settings.of_all is not None
        return update.weigh(self.client_weight(update.examples), 1.0 if equal else None)


_UPLOAD_HEADER = 569  # bytes of a Flower message besides its numbers, about
