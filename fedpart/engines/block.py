"""What engines hand out: a block of clients, run one after another and summed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.executor import ClientError, Executor
from fedpart.jobs import Job
from fedpart.protocol import Protocol
from fedpart.update import Update, add_into, sum_updates, summable

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
        skipped: clients without an update, with the reason.
    """

    total: Update | None = None
    upload_bytes: int = 0
    skipped: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: BlockSum, memory: Tensor | None = None, bounds: Sequence[int] = ()) -> None:
        """Add the next block, in place; ``memory`` and ``bounds`` as in :func:`~fedpart.update.add_into`."""
        if memory is None or other.total is None:
            self.total = sum_updates([self.total, other.total])
        else:
            self.total = add_into(memory, bounds, self.total, other.total)
        self.upload_bytes += other.upload_bytes
        self.skipped += other.skipped


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
        found = BlockSum()
        if self.protocol.settings.on_client_error == "skip":
            for clients in parts:
                found.add(self.run(clients))
            return found
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
            found.total = self.executor.add(client, self.shards[client], jobs, found.total)
        found.upload_bytes += upload_bytes(self.protocol, jobs)

    def _blame(self, clients: Iterable[int]) -> None:
        """Raise the ClientError of the first client whose update is refused."""
        for client in clients:
            self._update(client)

    def _alone(self, client: int) -> BlockSum:
        protocol = self.protocol
        try:
            update = self._update(client)
        except ClientError as error:
            if protocol.settings.on_client_error == "fail":
                raise
            return BlockSum(skipped=[{"client": client, "reason": str(error)}])
        size = upload_bytes(protocol, protocol.plan(client, self.round))
        return BlockSum(update.weigh(protocol.client_weight(update.examples)), size)

    def _update(self, client: int) -> Update:
        """The client's update, checked; whatever goes wrong becomes a ClientError that names the client."""
        jobs = self.protocol.plan(client, self.round)
        with naming(client, self.round):
            update = self.executor.run(client, self.shards[client], jobs)
        try:
            self.protocol.check(update, jobs)
        except ValueError as error:
            raise ClientError(
                f"The update of client {client} in round {self.round} was refused: {error}."
            ) from error
        return update
