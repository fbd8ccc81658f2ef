"""The in-process engine in simulated time: devices of their own speed, deadlines and buffered steps."""

import time
from collections.abc import Sequence
from typing import Any

from fedpart.data.dataset import Dataset
from fedpart.engines.local import LocalEngine
from fedpart.engines.turns import Turns
from fedpart.federated.cohorts import download_bytes
from fedpart.federated.federation import Federation
from fedpart.federated.report import RoundReport


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
        return server.report(total, time.perf_counter() - began, download)


def local_engine(federation: Federation, *more: Any, **options: Any) -> LocalEngine:
    """The engine for a federation, with the arguments of :class:`.LocalEngine`."""
    return (LocalEngine if federation.pace is None else PacedEngine)(federation, *more, **options)
