"""Simulated time: whom a round asks, how long their devices take, and the engine that heeds it."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fedpart.data.dataset import Dataset
from fedpart.engines.batches import count_visited
from fedpart.engines.local import LocalEngine
from fedpart.federated.cohorts import CohortSum, download_bytes, upload_bytes
from fedpart.federated.federation import Federation
from fedpart.federated.pace.turns import Group, Turn
from fedpart.federated.report import RoundReport
from fedpart.updates.errors import ClientError, skipped
from fedpart.updates.update import Round


class Turns:
    """The turns of a federation's pace, with the times that its fleet's devices take."""

    def __init__(self, federation: Federation, shards: Sequence[Dataset]) -> None:
        if federation.pace is None:
            raise ValueError("The settings simulate no time; use LocalEngine or FedPart.")
        self._federation, self._shards, self.pace = federation, shards, federation.pace

    def next(self, round: Round, there: Sequence[int] | None = None) -> Turn:
        """Whom the server asks, and whose answers it steps with; ``there`` can be reached, ascending."""
        federation = self._federation

        def draw(number: int, /, available: Sequence[int] | None = None, **more: Any) -> list[int]:
            both = available if there is None else there
            if available is not None and there is not None:
                both = sorted(set(available) & set(there))
            return federation.cohort(number, both, **more)

        return self.pace.turn(round.number, draw, partial(self.seconds, round))

    def sum(self, turn: Turn, round: Round, of: Callable[[Round, Sequence[int]], CohortSum]) -> CohortSum:
        """The sum of the answers that the turn steps with; the turn is not committed yet."""
        summed = CohortSum()
        for group in turn.groups:
            summed.join(of(self.begun(group, round), group.clients), group.scale)
        for client, seconds in turn.late:
            error = ClientError(
                f"Client {client} was not waited for in round {round.number}: it takes {seconds:.4g} s."
            )
            error.category = "late"
            summed.join(CohortSum(skipped=[skipped(client, error)]))
        summed.cohort = turn.cohort
        return summed

    def begun(self, group: Group, round: Round) -> Round:
        """What the clients of a group have started from, in a step of ``round``."""
        values = self.pace.values(group.round)
        return round if values is None else Round(group.round, *values, bounds=round.bounds)

    def seconds(self, round: Round, client: int) -> float:
        """Simulated seconds from asking ``client`` in ``round`` to its answer; 0 without a fleet.

        A client whose data cannot be read visits nothing, and says so when it is computed."""
        fleet, protocol = self.pace.fleet, self._federation.protocol
        if fleet is None:
            return 0.0
        jobs = protocol.plan(client, round.number)
        local = protocol.method.local_settings(protocol.view(client, round.number, round.psi))
        try:
            examples = len(self._shards[client])
        except Exception:
            examples = 0
        visited = sum(count_visited(protocol, local, examples, job) for job in jobs) if examples else 0
        sizes = download_bytes(protocol, client), upload_bytes(protocol, client, jobs)
        return fleet.device(client).seconds(sizes[0], visited, sizes[1])


class PacedEngine(LocalEngine):
    """A :class:`LocalEngine` of a federation with a pace."""

    paced = True

    def __init__(self, federation: Federation, shards: Sequence[Dataset], *more: Any, **options: Any) -> None:
        super().__init__(federation, shards, *more, **options)
        self._turns = Turns(federation, shards)

    def run_round(self) -> RoundReport:
        """See :meth:`.LocalEngine.run_round`: of those who answer in time."""
        began, server = time.perf_counter(), self.federation
        start = server.start()
        turn = self._turns.next(start)
        total = self._turns.sum(turn, start, self.clients.sum)
        self._turns.pace.commit(turn, start.w, start.psi)
        server.step(total)
        download = sum(download_bytes(server.protocol, client) for client in turn.asked)
        return RoundReport.of(server, total, time.perf_counter() - began, download)


def local_engine(federation: Federation, *more: Any, **options: Any) -> LocalEngine:
    """The engine for a federation, with the arguments of :class:`.LocalEngine`."""
    return (LocalEngine if federation.pace is None else PacedEngine)(federation, *more, **options)
