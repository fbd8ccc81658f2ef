"""Protocol: what server and clients agree on before the first round, and never change."""

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedpart.checks import require
from fedpart.federated import clients
from fedpart.federated.clients import as_trained, draws_sizes, shares_of
from fedpart.federated.settings import FederationSettings
from fedpart.methods.base import ClientView, FederatedMethod, Method, build_method
from fedpart.partition.nested import has_private, nested, united, with_personal
from fedpart.partition.partition import Partition
from fedpart.partition.sharing import sharing_of
from fedpart.randomness.streams import generator
from fedpart.task.gradients import Job, psi_mask
from fedpart.task.sizes import composed, of_size
from fedpart.task.task import Task
from fedpart.training.agreement import agreement, shapes
from fedpart.updates.codecs import Codec
from fedpart.updates.stages import UploadCodec, doing, stage_of, stages_of
from fedpart.updates.update import LARGEST, PSI, Norms, Round, Update, validate


class Networks(NamedTuple):
    """``task``, ``partition``: of the server's network; and those of all sizes."""

    task: Task
    partition: Partition
    tasks: Sequence[Task]
    partitions: Sequence[Partition]


def networks(task: Task, method: Method, chunks: tuple[float, ...], settings: FederationSettings) -> Networks:
    """The networks of a run, in the order of ``settings.architectures``; without them the task's alone."""
    prepared, number = method.prepare(task), len(chunks)
    if settings.architectures is None:
        stays = settings.combination.stays(prepared)
        known = {name for name, _ in (*prepared.module.named_parameters(), *prepared.module.named_buffers())}
        fits = not isinstance(stays, str) and known.issuperset(stays)
        require(fits, f"stays() returns {stays!r}; have it return a list of names of {sorted(known)}.")
        partition = with_personal(method.partition(prepared, chunks, settings), stays)
        return Networks(prepared, partition, [prepared], [partition])
    sized = [of_size(task, size["model_options"], settings.seed) for size in settings.architectures]
    shapes = [
        [(entry.name, entry.shape) for entry in network.parameter_space(1).entries]
        for network in (task, *sized)
    ]
    if settings.sharing is not None:
        originals = [
            task if same == shapes[0] else network for same, network in zip(shapes[1:], sized, strict=True)
        ]
        sized = composed(originals, sharing_of(settings.sharing), settings.seed)
    tasks = [method.prepare(network) for network in sized]
    spaces = [network.parameter_space(number) for network in tasks]
    if has_private(spaces):  # then no network has all
        fault = "No architecture is the task's own network, which is the one that is scored"
        require(shapes[0] in shapes[1:], f"{fault}; give the task the network of one of them.")
        partitions = nested(method.partition(prepared, chunks, settings, united(spaces)), spaces)
        index = shapes[1:].index(shapes[0])
        return Networks(tasks[index], partitions[index], tasks, partitions)
    whole = method.partition(prepared, chunks, settings)
    partition, *partitions = nested(whole, [whole.space, *spaces])
    return Networks(prepared, partition, tasks, partitions)


class Protocol:
    """The policies of a run, functions of (task, settings): the same on the server and every client.

    Args:
        task: what is learned; the method may change it (FedAvg drops the augmentation).
        settings: see :class:`.FederationSettings`.
        identity, files: hashes that all must share as well, of the data's configuration and of their files.

    Attributes:
        method, task, partition, assignment, caps, architectures: built from the arguments.
        tasks, partitions: of each of ``settings.architectures``, whose networks are parts of the task's;
            without them ``task`` and ``partition``.
        kinds: chunk, cap and architecture: the first client of each, and how many, see :data:`.Kinds`.
        stages: what changes one client's update, see :class:`.base.Stage`; those that remember are the
            federation's.
        private: whether losses and counts stay with clients.
        draws: whether local steps go through parts of the clients' networks.
        expected_shares: by architecture and cell the mean share of steps that train it, where they do.
        codec: in which clients' changes of weights travel; None: as they are.
        download: the type as which weights travel to clients; None: the task's own.
        holds_out: whether clients hold out examples, for the method or for evaluations.
        psi_mask: ``[P]``, 1 where psi is learned.
        agreement: everything that they must agree on, as plain data by name.
        fingerprint: short hash of the agreement; echo: that and of the files, which messages have.

    Raises:
        ValueError: see FederationSettings, Partition and :func:`.assigned_chunks`; or safeguards that do not
            fit the method; or caps with which a client computes nothing, or nobody trains a partition.
    """

    def __init__(self, task: Task, settings: FederationSettings, identity: str = "", files: str = "") -> None:
        self.settings = settings
        method = build_method(settings.method, settings.method_options)
        if not isinstance(method, FederatedMethod):
            remedy = "plain federated training is 'fedavg'"
            raise ValueError(f"The method {settings.method!r} is centralised only; {remedy}.")
        self.method = method
        settings.check_feedback(self.method.held_out)
        self.chunks = self.method.proportions(settings.chunks)
        self.task, self.partition, self.tasks, self.partitions = networks(
            task, self.method, self.chunks, settings
        )
        self.holds_out = (
            bool(self.method.held_out or self.method.validates) or settings.evaluation == "clients"
        )
        self.psi_mask = psi_mask(self.task, self.method.trained_psi(self.task))
        self._frozen = not self.psi_mask.all()
        settings.check_caps(len(self.chunks))
        of_clients = settings.clients, settings.seed
        self.assignment = clients.assigned_chunks(self.chunks, *of_clients)
        self.caps = clients.assigned_caps(settings.caps, settings.caps_by, self.assignment, *of_clients)
        shares = [size["share"] for size in settings.architectures or [{"share": 1.0}]]
        self.architectures = clients.assigned_architectures(shares, self.assignment, *of_clients)
        columns = (self.assignment, self.caps, self.architectures)
        self.kinds = clients.kinds_of(*(column.first(settings.clients) for column in columns))
        more, local = settings.combination.head_epochs, settings.local
        self._local = replace(local, epochs=local.epochs + more) if more else local
        self.draws = draws_sizes(self.method, settings)
        nets = [*enumerate(self.partitions)]  # of each, those whose networks are parts of it, itself first
        self._parts = [(i, *(j for j, other in nets if i != j and net.has(other))) for i, net in nets]
        self.expected_shares = [
            shares_of(parts, len(parts), self.partitions) if self.draws else {} for parts in self._parts
        ]
        self.stages = stages_of(self)
        self.private = any(stage.private for stage in self.stages)
        self._equal = any(stage.equal for stage in self.stages)
        coding = stage_of(self.stages, UploadCodec)
        self.codec: Codec | None = None if coding is None else coding.codec
        self._receive = doing(self.stages, "receive")
        narrow = {None: None, "fp16": torch.float16, "bf16": torch.bfloat16}
        self.download: torch.dtype | None = narrow[settings.download]
        clients.check_jobs(self.kinds, self.plan, self.partition.chunks, settings.method)
        if settings.caps is not None:
            learns, run = bool(self.task.psi_space.size), (settings.method, settings.caps_by)
            clients.check_plans(self.kinds, self.plan, len(self.chunks), *run, learns)
        asked = (self.unseen(client, self.plan(client, 1)) for client, _ in self.kinds.values())
        fault, known = f"keep_best goes by L_ML, which {settings.method!r} has not here", any(asked)
        require(settings.keep_best is None or known, f"{fault}; set keep_best to null.")
        if method.halving is not None:
            method.halving.check(settings, known)
        self.agreement = agreement(self.task, self.partition, settings.deciding(), identity)
        if settings.architectures is not None:
            firsts = (client for client, _ in self.kinds.values())
            sent = [self.upload_sizes(client, self.plan(client, 1)).keys() - {PSI} for client in firsts]
            cells = len(self.partition.cells) - 1
            clients.check_architectures(self.kinds, sent, cells, settings.architectures)
            self.agreement["architectures' shapes"] = [shapes(each.space) for each in self.partitions]
        agreed = json.dumps(self.agreement, sort_keys=True)
        self.fingerprint = hashlib.sha256(agreed.encode()).hexdigest()[:16]
        both = f"{self.fingerprint} {files}" if files else agreed
        self.echo = hashlib.sha256(both.encode()).hexdigest()[:16]

    def chunk(self, client: int) -> int:
        """Chunk (1..C) of client ``client``; fixed for the run."""
        return self.assignment[client]

    def cap(self, client: int) -> int:
        """The largest subnetwork (1..C) that the device of ``client`` computes; fixed for the run."""
        return self.caps[client]

    def cohort(
        self, round: int, available: Sequence[int] | None = None, *,
        size: int | None = None, without: Collection[int] = (), turn: int = 0,
    ) -> list[int]:  # fmt: skip
        """Clients of round ``round`` (1..), ascending: a sample without replacement, by client number.

        Args:
            available: client numbers to choose from; all N if not given. Fewer than are wanted: all of them.
            size: how many are wanted; the cohort if not given.
            without: clients that cannot be chosen.
            turn: 0.., another sample of the same round.
        """
        settings = self.settings
        pool = range(settings.clients) if available is None else sorted(set(available))
        wanted = settings.cohort if size is None else size
        rng, most = generator(settings.seed, "cohort", round, turn), min(wanted + len(without), len(pool))
        drawn = [pool[place] for place in rng.choice(len(pool), most, replace=False)]
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

    def view(self, client: int, round: int, psi: Tensor | None = None, rate: float = 1.0) -> ClientView:
        """What the method sees of ``client`` in ``round`` (1..); ``psi [P]``: the server's; ``rate``: see
        :attr:`.Round.local_rate`."""
        size, settings = self.architectures[client], self.settings
        of_client = client, self.assignment[client], len(self.chunks), self.caps[client], round
        local = self._local.at(round, rate) if rate != 1 or self._local.cosine_rounds else self._local
        of_run = settings.seed, self.tasks[size], local, self._parts[size], self.tasks
        return ClientView(*of_client, *of_run, psi)

    def plan(self, client: int, round: int) -> list[Job]:
        """What the client is asked to compute in this round."""
        return self.method.plan(self.view(client, round))

    def bytes_of(self, part: int, numbers: int) -> int:
        """In how many bytes a part of so many numbers travels."""
        coded = None if part == PSI else self.codec
        return numbers * self.task.dtype.itemsize if coded is None else coded.size(numbers)

    def upload_sizes(self, client: int, jobs: Sequence[Job]) -> dict[int, int]:
        """Numbers of each part (:attr:`.Update.parts`) of the client's answer to ``jobs``, ascending."""
        sizes = {PSI: self.task_of(client).psi_space.size} if any(job.psi for job in jobs) else {}
        for j in sorted(job.partition for job in jobs if job.partition is not None):
            sizes |= self.partition_of(client).cell_sizes(j)
        return sizes

    def unseen(self, client: int, jobs: Iterable[Job]) -> Job | None:
        """The job whose loss is the client's term of L_ML: it trains nothing, and its subnetwork has never
        seen the client's chunk. None: there is none, or privacy keeps the loss with the client."""
        if self.private:
            return None
        chunk = self.assignment[client]
        return next((job for job in jobs if job.partition is None and job.subnetwork < chunk), None)

    def check(self, update: Update, limit: float = LARGEST) -> None:
        """Refuse, with a :class:`.Refusal`, numbers that cannot be summed; ``limit``: see :class:`.Round`."""
        validate(update, self.settings.max_examples, limit)

    def receive(self, update: Update, client: int, round: Round) -> tuple[Update, Norms]:
        """A client's checked update as a term of the cohort's sum, in place, and the norms that it had; what
        it says about frozen hyperparameters is left out."""
        if self._frozen and update.psi is not None:
            update.psi.mul_(self.psi_mask.to(update.psi.device))
        if self.draws:
            as_trained(self, update, client, round)
        norms: dict[int, float | Tensor] = {}
        for change in self._receive:
            norms |= change(update, round)
        update, uniform = self.method.counted(update, self.partition), self.settings.weighting == "uniform"
        return update.weigh(1.0 if uniform else float(update.examples), 1.0 if self._equal else None), norms
