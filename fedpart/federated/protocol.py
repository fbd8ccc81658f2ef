"""Protocol: what server and clients agree on before the first round, and never change."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedpart.codecs import CODECS, Codec
from fedpart.federated.clients.assignment import ChunkAssignment
from fedpart.federated.clients.caps import CapAssignment, check_plans
from fedpart.federated.clients.kinds import ArchitectureAssignment, check_architectures, kinds_of
from fedpart.federated.residuals import Residuals
from fedpart.federated.round import Round
from fedpart.federated.settings import FederationSettings
from fedpart.federated.sizes import networks
from fedpart.methods.base import Method, build_method
from fedpart.methods.views import ClientView
from fedpart.parameters.partition import Partition
from fedpart.randomness.streams import generator
from fedpart.task.gradients import psi_mask
from fedpart.task.jobs import Job
from fedpart.task.task import Task
from fedpart.training.agreement import agreement, shapes
from fedpart.updates.checks import LARGEST, validate
from fedpart.updates.clipping import Bounds, clip
from fedpart.updates.cohort import CohortSum
from fedpart.updates.update import Update

UPLOAD_HEADER = 569  # bytes of a Flower message besides its numbers, about


class Protocol:
    """The policies of a run, functions of (task, settings): the same on the server and every client.

    Args:
        task: what is learned; the method may change it (FedAvg drops the augmentation).
        settings: see :class:`.FederationSettings`.
        identity: text that server and clients must share as well, e.g. a hash of the data's configuration.

    Attributes:
        method, task, partition, assignment, caps, architectures: built from the arguments.
        tasks, partitions: of each of ``settings.architectures``, whose networks are parts of the task's;
            without them ``task`` and ``partition``.
        kinds: of clients there are, see :data:`.Kinds`.
        bounds: to which the client clips, and the server unless bounds follow the clients.
        codec: in which clients' changes of weights travel; None: as they are.
        download: the type as which weights travel to clients; None: the task's own.
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
        if type(self.method).plan is Method.plan:
            raise ValueError(
                f"The method {settings.method!r} is centralised only; plain federated training is 'fedavg'."
            )
        settings.check_feedback(self.method.held_out)
        self.chunks = self.method.proportions(settings.chunks)
        self.task, self.partition, self.tasks, self.partitions = networks(
            task, self.method, self.chunks, settings
        )
        self.psi_mask = psi_mask(self.task, self.method.trained_psi(self.task))
        settings.check_caps(len(self.chunks))
        self.assignment = ChunkAssignment(self.chunks, settings.clients, settings.seed)
        self.caps = CapAssignment(
            settings.caps, settings.caps_by, self.assignment, settings.clients, settings.seed
        )
        shares = [1.0] if settings.architectures is None else [one["share"] for one in settings.architectures]
        self.architectures = ArchitectureAssignment(shares, self.assignment, settings.clients, settings.seed)
        columns = (self.assignment, self.caps, self.architectures)
        self.kinds = kinds_of(*(column.first(settings.clients) for column in columns))
        self._parts = [self._parts_of(index) for index in range(len(self.partitions))]
        self.bounds: Bounds = (math.inf,) * len(self.partition.cells)
        if settings.clip is not None and not settings.clip.adaptive:
            self.bounds = settings.clip.bounds(self.partition)
        self.codec: Codec | None = None
        if settings.upload is not None:
            self.codec = CODECS.make(settings.upload, settings.upload_options)
        narrow = {None: None, "fp16": torch.float16, "bf16": torch.bfloat16}
        self.download: torch.dtype | None = narrow[settings.download]
        self.expected_upload_ratio = self._expected_upload_ratio()
        if settings.caps is not None:
            learns, run = bool(self.task.psi_space.size), (settings.method, settings.caps_by)
            check_plans(self.kinds, self.plan, len(self.chunks), *run, learns)
        self.agreement = agreement(self.task, self.partition, settings.deciding(), identity)
        if settings.architectures is not None:
            firsts = (client for client, _ in self.kinds.values())
            sent = {client: self.upload_sizes(client, self.plan(client, 1))[0] for client in firsts}
            check_architectures(self.kinds, sent, len(self.partition.cells) - 1, settings.architectures)
            self.agreement["architectures' shapes"] = [shapes(one.space) for one in self.partitions]
        agreed = json.dumps(self.agreement, sort_keys=True)
        self.fingerprint = hashlib.sha256(agreed.encode()).hexdigest()[:16]

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

    def scoring_task(self, client: int) -> Task:
        """The task as ``client`` evaluates it, with ``evaluation_samples``."""
        return self.task_of(client).with_samples(self.settings.evaluation_samples)

    def task_of(self, client: int) -> Task:
        """What ``client`` learns: that of its architecture."""
        return self.tasks[self.architectures[client]]

    def partition_of(self, client: int) -> Partition:
        """How the parameters of ``client`` are divided."""
        return self.partitions[self.architectures[client]]

    def view(self, client: int, round: int, psi: Tensor | None = None) -> ClientView:
        """What the method sees of ``client`` in ``round`` (1..); ``psi [P]``: the server's."""
        settings, size = self.settings, self.architectures[client]
        of_run = round, settings.seed, self.tasks[size], settings.local, self._parts[size], self.tasks
        return ClientView(client, self.chunk(client), len(self.chunks), self.cap(client), *of_run, psi)

    def plan(self, client: int, round: int) -> list[Job]:
        """What the client is asked to compute in this round."""
        return self.method.plan(self.view(client, round))

    def _expected_upload_ratio(self) -> float:
        """Of all clients to FedAvg's of the task's network: ``sum_k u_k sum_{j >= k} u_j`` (App. J.1)."""
        whole, total = self.partition.space.size * self.task.dtype.itemsize, 0.0
        for (chunk, cap, architecture), (_, count) in self.kinds.items():
            partition = self.partitions[architecture]
            sizes = [s for j in range(chunk, cap + 1) for s in partition.cell_sizes(j).values()]
            total += count / self.settings.clients * sum(map(self.weight_bytes, sizes)) / whole
        return total

    def _parts_of(self, index: int) -> tuple[int, ...]:
        """The architectures whose networks are parts of that of ``index``, itself first."""
        own, others = self.partitions[index], list(enumerate(self.partitions))
        inside = (i for i, one in others if i != index and own.has(one))
        return index, *inside

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
        return sum(map(self.weight_bytes, weights.values())) + of_psi + UPLOAD_HEADER

    def weight_bytes(self, numbers: int) -> int:
        """In how many bytes the change of a cell of so many numbers travels."""
        return numbers * self.task.dtype.itemsize if self.codec is None else self.codec.size(numbers)

    def state_bytes(self, client: int) -> int:
        """In how many bytes the server's values travel to ``client``."""
        own = self.task.dtype.itemsize
        of_w = own if self.download is None else self.download.itemsize
        return self.partition_of(client).needed * of_w + self.task.psi_space.size * own

    def upload_sizes(self, client: int, jobs: Sequence[Job]) -> tuple[dict[int, int], int | None]:
        """Numbers of each cell in the client's answer to ``jobs``, ascending; those of psi, or None."""
        partition, weights = self.partition_of(client), dict[int, int]()
        for j in sorted(job.partition for job in jobs if job.partition is not None):
            weights |= partition.cell_sizes(j)
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

    def check(self, client: int, update: Update, jobs: Sequence[Job], limit: float = LARGEST) -> None:
        """Refuse an update of ``client`` that does not answer ``jobs``; ``limit``: see :class:`.Round`.

        Raises:
            Refusal: see :func:`.validate`.
        """
        weights, psi = self.upload_sizes(client, jobs)
        validate(update, weights, psi, self.task_of(client).dtype, self.settings.max_examples, limit)

    def outgoing(
        self,
        update: Update,
        client: int,
        round: int,
        seconds: float = 0.0,
        residuals: Residuals | None = None,
    ) -> Update:
        """A client's update as it leaves the client: clipped, encoded, in place, and with what it has cost.

        With a codec its numbers are those that the server will read. With error feedback (Seide et al. 2014;
        Karimireddy et al. 2019) what earlier codes have lost is added first, and what these lose is kept.

        Args:
            client, round: whose update it is; the codec's randomness is a function of them.
            seconds: that it took; 0: not known. With privacy neither these nor ``visited`` are told.
            residuals: where what codes have lost is kept; None: it is lost.

        Raises:
            ValueError, OSError: the residuals cannot be read or written.
        """
        left = {} if residuals is None else self._residual(residuals, client)
        for j in left.keys() & update.deltas.keys():
            update.deltas[j] += left[j].to(update.deltas[j].device)
        clip(update, self.bounds)
        if self.codec is not None:
            for j, delta in update.deltas.items():
                rng = generator(self.settings.seed, "upload", client, round, j)
                update.encoded[j] = data = self.codec.encode(delta, rng)
                update.deltas[j] = self.codec.decode(data, len(delta), delta.dtype)
                if residuals is not None:
                    left[j] = (delta - update.deltas[j]).cpu()
        if residuals is not None:
            residuals.write(client, round, left)
        update.seconds = seconds
        if self.settings.privacy is not None:
            update.visited, update.seconds = 0, 0.0
        return update

    def _residual(self, residuals: Residuals, client: int) -> dict[int, Tensor]:
        """What codes have lost of the client; nothing if that is gone, and clients may come and go."""
        try:
            return residuals.read(client)
        except ValueError as error:
            if self.settings.on_client_error == "fail":
                raise
            warnings.warn(f"Client {client} begins with nothing kept: {error}.", RuntimeWarning, stacklevel=2)
            return {}

    def accept(
        self, client: int, update: Update, jobs: Sequence[Job], found: CohortSum, round: Round
    ) -> Update:
        """The update of ``client``, checked, as a term of the cohort's sum; see :meth:`term`.

        Raises:
            Refusal: see :meth:`check`.
        """
        self.check(client, update, jobs, round.limit)
        return self.term(client, update, found, round.bounds)

    def term(self, client: int, update: Update, found: CohortSum, bounds: Bounds | None = None) -> Update:
        """A client's checked update as a term of the cohort's sum: clipped and weighted, in place.

        What it has to say about frozen hyperparameters, which is nothing if it is honest, is left out.

        Args:
            found: notes its norms.
            bounds: to which it is clipped; None: the protocol's.
        """
        if update.psi is not None:
            update.psi.mul_(self.psi_mask.to(update.psi.device))
        found.norms[client] = clip(update, self.bounds if bounds is None else bounds)
        equal = self.settings.privacy is not None or bool(self.settings.defended)
        counted = self.method.counted(update, self.partition)
        return counted.weigh(self.client_weight(update.examples), 1.0 if equal else None)
