"""Runs a cohort on the vectorised executor, and sums its updates in their order."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.engines.block import BlockSum, collecting, upload_bytes
from fedpart.engines.executor import ClientError
from fedpart.federated.protocol import Protocol
from fedpart.task.jobs import Job
from fedpart.updates.refusal import Refusal, skipped
from fedpart.updates.update import Update
from fedpart.vectorised.executor import VectorisedExecutor


class VectorisedRunner:
    """Computes jobs of several clients together; see :class:`.VectorisedExecutor`.

    Args:
        protocol: of the run.
        shards: ``shards[client]`` is the client's data.

    Raises:
        ValueError: the task is in channels-last memory format.
    """

    def __init__(self, protocol: Protocol, shards: Sequence[Dataset]) -> None:
        self.protocol, self.shards = protocol, shards
        self.executor = VectorisedExecutor(protocol)

    def sum(self, round: int, parts: Sequence[Sequence[int]], w: Tensor, psi: Tensor) -> BlockSum:
        """The sum over a round's cohort at the server's ``w [size]`` and ``psi [P]``.

        Raises:
            ClientError: a client failed, or its update was refused, and the settings say ``fail``; or the
                clients cannot be computed together.
        """
        clients = [client for part in parts for client in part]
        plans = [self.protocol.plan(client, round) for client in clients]
        self.executor.begin(round, w, psi)
        try:
            with collecting(self.protocol) as found:
                updates = self.executor.run_cohort(clients, self.shards, plans)
                for client, jobs, update in zip(clients, plans, updates, strict=True):
                    found.add(self._block(client, round, jobs, update))
        except ValueError as error:
            raise ClientError(f"Round {round}: {error}") from error
        return found

    def _block(self, client: int, round: int, jobs: Sequence[Job], update: Update | ClientError) -> BlockSum:
        if isinstance(update, Update):
            try:
                term = self.protocol.accept(update, jobs)
                return BlockSum(term, upload_bytes(self.protocol, jobs))
            except Refusal as error:
                update = ClientError.refused(client, round, error)
        if self.protocol.settings.on_client_error == "fail":
            raise update
        return BlockSum(skipped=[skipped(client, update)])
