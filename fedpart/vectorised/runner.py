"""The execution ``vectorised``: a cohort on the vectorised executor, its updates summed in their order."""

from __future__ import annotations

from collections.abc import Sequence

from fedpart.data.dataset import Dataset
from fedpart.engines.local import EXECUTIONS
from fedpart.federated.protocol import Protocol
from fedpart.federated.round import Round
from fedpart.updates.cohort import CohortSum, aggregate
from fedpart.updates.errors import ClientError, Refusal, skipped
from fedpart.updates.update import Update
from fedpart.vectorised.executor import VectorisedExecutor


@EXECUTIONS.register("vectorised")
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

    def sum(self, round: Round, cohort: Sequence[int]) -> CohortSum:
        """See :meth:`.Execution.sum`."""
        found, updates = CohortSum(), self.executor.run_cohort(round, cohort, self.shards)

        def term(client: int) -> Update | None:
            update, jobs = next(updates), self.protocol.plan(client, round.number)
            if isinstance(update, Update):
                try:
                    accepted = self.protocol.accept(client, update, jobs)
                    found.upload_bytes += self.protocol.upload_bytes(client, round.number)
                    return accepted
                except Refusal as error:
                    update = ClientError.refused(client, round.number, error)
            if self.protocol.settings.on_client_error == "fail":
                raise update
            found.skipped.append(skipped(client, update))
            return None

        try:
            found.total = aggregate(cohort, term, self.protocol.settings.trim)
        except ValueError as error:
            raise ClientError(f"Round {round.number}: {error}") from error
        return found
