"""The in-process engine: the cohort's blocks run here or on workers, and are summed as they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fedpart.data.dataset import Dataset
from fedpart.engines.block import BlockRunner, parts
from fedpart.engines.fused import FusedRunner
from fedpart.engines.workers import WorkerPool
from fedpart.federated.federation import Federation, RoundReport
from fedpart.registry import nearest
from fedpart.vectorised.runner import VectorisedRunner

EXECUTIONS: dict[str, type[BlockRunner | FusedRunner | VectorisedRunner]] = {
    "loop": BlockRunner,
    "vectorised": VectorisedRunner,
    "fused": FusedRunner,
}
DOWNLOAD_HEADER = 710  # bytes of a Flower message besides its numbers, about; nothing is sent here


class LocalEngine:
    """Runs rounds of a federation on this machine; with several workers, use it as a context manager.

    Args:
        federation: the state.
        shards: ``shards[client]`` is the client's data; a list, or anything lazy with ``__getitem__``.
        workers: processes that run the clients, with one torch thread each; 1: this process, with its own
            number of threads. The result has the same bits for any number of them, if that is one thread.
        execution: ``loop``: client by client. In this process: ``vectorised``: several clients at a time, see
            :class:`.VectorisedExecutor`; ``fused``: the cohort's data together, see
            :class:`.FusedRunner`.

    Raises:
        ValueError: no worker is asked for, or the execution is unknown or does not fit the settings.
    """

    def __init__(
        self,
        federation: Federation,
        shards: Sequence[Dataset],
        workers: int = 1,
        execution: str = "loop",
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers is a number of processes, at least 1, got {workers}.")
        if execution not in EXECUTIONS:
            raise ValueError(f"Unknown execution {execution!r}: {nearest(execution, EXECUTIONS)}")
        if execution != "loop" and workers > 1:
            raise ValueError(
                f"Clients are {execution} in one process, but workers is {workers}; set it to 1, or use "
                f"execution: loop."
            )
        self.federation, self.execution = federation, execution
        protocol = federation.protocol
        self._clients: BlockRunner | WorkerPool | FusedRunner | VectorisedRunner = (
            WorkerPool(protocol, shards, workers) if workers > 1 else EXECUTIONS[execution](protocol, shards)
        )

    @property
    def workers(self) -> int:
        """Processes that run the clients: as asked for, or as many as a cohort can occupy."""
        return self._clients.workers if isinstance(self._clients, WorkerPool) else 1

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        if isinstance(self._clients, WorkerPool):
            self._clients.close()

    def run_round(self) -> RoundReport:
        """One round: sample, execute, sum, step.

        Raises:
            ClientError: a client failed, or its update was refused, and the settings say ``fail``.
        """
        federation = self.federation
        start, round = time.perf_counter(), federation.round + 1
        cohort = federation.cohort(round)
        blocks = parts(federation.protocol, cohort)
        found = self._clients.sum(round, blocks, federation.w, federation.psi)
        federation.step(found.total)
        numbers = len(federation.w) + len(federation.psi)
        download = len(cohort) * (numbers * federation.w.element_size() + DOWNLOAD_HEADER)
        seconds = time.perf_counter() - start
        return federation.report(seconds, cohort, found.total, found.upload_bytes, download, found.skipped)

    def run(self, rounds: int, on_round: Callable[[RoundReport], None] | None = None) -> None:
        """Run until ``rounds`` rounds are complete."""
        while self.federation.round < rounds:
            report = self.run_round()
            if on_round is not None:
                on_round(report)
