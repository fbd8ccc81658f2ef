"""What engines hand out: a block of clients, run one after another and summed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.engines.executor import ClientError, Executor
from fedpart.federated.protocol import Protocol
from fedpart.task.jobs import Job
from fedpart.updates.refusal import Refusal, skipped
from fedpart.updates.trimmed import trimmed_mean
from fedpart.updates.update import Update, add_into, blocks, sum_updates, summable

UPLOAD_HEADER = 509  # bytes of a Flower message besides its numbers, about; nothing is sent here


def ahead(workers: int) -> int:
    """How many blocks may be under way, or done before their turn in the sum: it bounds the memory.

    Half as many again as there are workers: none waits while its neighbours take less than twice as long.
    """
    return workers + (workers + 1) // 2


def upload_bytes(protocol: Protocol, jobs: Sequence[Job]) -> int:
    """Size of the answer to ``jobs``, as a message."""
    return protocol.upload_numbers(jobs) * protocol.task.dtype.itemsize + UPLOAD_HEADER


@contextmanager
def naming(client: int, round: int) -> Iterator[None]:
    """Whatever goes wrong within becomes a ClientError that names the client."""
    try:
        yield
    except ClientError:
        raise
    except Exception as error:
        raise ClientError.of(client, round, error) from error


@dataclass
class BlockSum:
    """What came out of a block of clients, or of several.

    Attributes:
        total: weighted sum of the updates; None: there was none.
        upload_bytes: of the updates.
        skipped: clients without an update, see :func:`.skipped`.
    """

    total: Update | None = None
    upload_bytes: int = 0
    skipped: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: BlockSum, memory: Tensor | None = None, bounds: Sequence[int] = ()) -> None:
        """Add the next block, in place; ``memory`` and ``bounds`` as in :func:`.add_into`."""
        if memory is None or other.total is None:
            self.total = sum_updates([self.total, other.total])
        else:
            self.total = add_into(memory, bounds, self.total, other.total)
        self.upload_bytes += other.upload_bytes
        self.skipped += other.skipped


@dataclass
class Gathered(BlockSum):
    """What came out of blocks of a client each, whose updates are kept: a trimmed mean needs them all.

    Attributes:
        trim: see :func:`.trimmed_mean`.
        updates: in the cohort's order.
    """

    trim: float = 0.0
    updates: list[Update] = field(default_factory=list)

    def add(self, other: BlockSum, memory: Tensor | None = None, bounds: Sequence[int] = ()) -> None:
        """Keep the next block's update; if ``memory`` is given, its tensors are somebody else's: a copy."""
        if (update := other.total) is not None:
            if memory is not None:
                update.deltas = {j: delta.clone() for j, delta in update.deltas.items()}
                update.psi = None if update.psi is None else update.psi.clone()
            self.updates.append(update)
        self.upload_bytes += other.upload_bytes
        self.skipped += other.skipped

    def finish(self) -> None:
        """Make ``total``, and let go of the updates."""
        self.total, self.updates = trimmed_mean(self.updates, self.trim), []


def parts(protocol: Protocol, cohort: Sequence[int]) -> list[Sequence[int]]:
    """The cohort in the blocks that are handed out: those of the sum, or clients where each is looked at."""
    if protocol.settings.trim is not None:
        return [[client] for client in cohort]
    return [cohort[block.start : block.stop] for block in blocks(len(cohort))]


@contextmanager
def collecting(protocol: Protocol) -> Iterator[BlockSum]:
    """What a cohort's blocks are added to within; its total is complete afterwards."""
    if protocol.settings.trim is None:
        yield BlockSum()
        return
    found = Gathered(trim=protocol.settings.trim)
    yield found
    found.finish()


class BlockRunner:
    """Runs blocks of clients in this process.

    Args:
        protocol: of the run.
        shards: ``shards[client]`` is the client's data.
    """

    def __init__(self, protocol: Protocol, shards: Sequence[Dataset]) -> None:
        self.protocol, self.shards = protocol, shards
        self.executor = Executor(protocol)

    def sum(self, round: int, parts: Sequence[Sequence[int]], w: Tensor, psi: Tensor) -> BlockSum:
        """The sum over all blocks of a round's cohort at the server's ``w [size]`` and ``psi [P]``.

        Raises:
            ClientError: see :meth:`run`.
        """
        self.begin(round, w, psi)
        settings = self.protocol.settings
        if settings.on_client_error == "skip" or settings.needs_each_update:
            with collecting(self.protocol) as found:
                for clients in parts:
                    found.add(self.run(clients))
            return found
        found = BlockSum()
        for clients in parts:
            if len(clients) == 1:  # a sum of one can be added without being made
                self._add(clients[0], found)
            else:
                block = BlockSum()
                for client in clients:
                    self._add(client, block)
                found.add(block)
        if found.total is not None and not summable(found.total):
            self._blame(client for clients in parts for client in clients)
        return found

    def begin(self, round: int, w: Tensor, psi: Tensor) -> None:
        """Take over the server's values for a round."""
        self.round = round
        self.executor.begin(round, w, psi)

    def run(
        self,
        clients: Iterable[int],
        memory: Tensor | None = None,
        on_client: Callable[[int], None] = lambda client: None,
    ) -> BlockSum:
        """The sum over ``clients``, left to right.

        Args:
            clients: client numbers.
            memory: ``[size + P]`` in which the sum is made; None: in memory of its own.
            on_client: called before each client.

        Raises:
            ClientError: a client failed, or its update was refused, and the settings say ``fail``.
        """
        found = BlockSum()
        for client in clients:
            on_client(client)
            found.add(self._alone(client), memory, self.protocol.partition.bounds)
        return found

    def _add(self, client: int, found: BlockSum) -> None:
        """Add a client's update to a sum, in place; its values are not checked."""
        jobs = self.protocol.plan(client, self.round)
        with naming(client, self.round):
            shard = self.shards[client]
            if len(shard) > self.protocol.settings.max_examples:
                self._term(client)  # is refused
            found.total = self.executor.add(client, shard, jobs, found.total)
        found.upload_bytes += upload_bytes(self.protocol, jobs)

    def _blame(self, clients: Iterable[int]) -> None:
        """Raise the ClientError of the first client whose update is refused."""
        for client in clients:
            self._term(client)

    def _alone(self, client: int) -> BlockSum:
        protocol = self.protocol
        try:
            term = self._term(client)
        except ClientError as error:
            if protocol.settings.on_client_error == "fail":
                raise
            return BlockSum(skipped=[skipped(client, error)])
        return BlockSum(term, upload_bytes(protocol, protocol.plan(client, self.round)))

    def _term(self, client: int) -> Update:
        """The client's term of the sum; whatever goes wrong becomes a ClientError that names the client."""
        jobs = self.protocol.plan(client, self.round)
        with naming(client, self.round):
            update = self.executor.run(client, self.shards[client], jobs)
        try:
            return self.protocol.accept(update, jobs)
        except Refusal as error:
            raise ClientError.refused(client, self.round, error) from error
