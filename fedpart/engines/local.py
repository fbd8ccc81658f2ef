"""The in-process engine: a federation's rounds on this machine, from the cohort to the server's step."""

import time
import typing
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from fedpart.checks import check_whole
from fedpart.data.dataset import Dataset
from fedpart.engines.evaluation import ClientEvaluation
from fedpart.engines.executor import Executor
from fedpart.engines.workers import WorkerPool
from fedpart.federated.cohorts import CohortSum, download_bytes, sum_cohort
from fedpart.federated.federation import Federation
from fedpart.federated.protocol import Protocol
from fedpart.federated.report import RoundReport
from fedpart.registry import Registry
from fedpart.task.gradients import check_gradients_on, kept_casts
from fedpart.updates.errors import out_of_memory
from fedpart.updates.update import Round


class Execution(typing.Protocol):
    """How a cohort is computed; made of the run's protocol and its shards, by client."""

    def sum(self, round: Round, cohort: Sequence[int]) -> CohortSum:
        """The sum of the cohort's updates at the server's values.

        Raises:
            ClientError: a client failed, or its update was refused, and the settings say ``fail``; or the
                clients cannot be computed in this way.
        """


EXECUTIONS: Registry[Callable[[Protocol, Sequence[Dataset]], Execution]] = Registry("execution")


class LocalEngine:
    """Runs rounds of a federation on this machine; with several workers, use it as a context manager.

    Args:
        federation: the state.
        shards: ``shards[client]`` is the client's data; a list, or anything lazy with ``__getitem__``.
        workers: processes that run the clients, with one torch thread each; 1: this process, with its own
            number of threads. The result has the same bits for any number of them, if that is one thread.
        execution: how this process computes a cohort: ``loop``: client by client; ``fused``: its data
            together, see :class:`.FusedRunner`; ``grouped``: several clients at a time; ``auto``: ``loop`` on
            a CPU, or else the best of these that takes the run; or what makes an :class:`.Execution`.
        evaluate_every: rounds between evaluations by the clients, if they evaluate: in this process.

    Attributes:
        clients: what computes a cohort's sum.

    Raises:
        ValueError: no worker is asked for, or the execution is unknown or does not fit the settings, or these
            simulate time.
    """

    paced: ClassVar[bool] = False

    def __init__(
        self, federation: Federation, shards: Sequence[Dataset], workers: int = 1,
        execution: str | Callable[[Protocol, Sequence[Dataset]], Execution] = "auto",
        evaluate_every: int = 10,
    ) -> None:  # fmt: skip
        check_gradients_on()
        if not self.paced and federation.pace is not None:
            raise ValueError("The settings simulate time, which LocalEngine does not; use local_engine().")
        check_whole("workers", workers, 1, "a number of processes")
        execute = execution if callable(execution) else EXECUTIONS.resolve(execution)
        if execution not in ("auto", "loop") and workers > 1:
            remedy = "set it to 1, or use execution: loop"
            raise ValueError(f"Clients are {execution} in one process, but workers is {workers}; {remedy}.")
        self.federation, self.execution = federation, execution
        protocol = federation.protocol
        self._evaluation = ClientEvaluation(protocol, shards, evaluate_every)
        self._pool = WorkerPool(protocol, shards, workers) if workers > 1 else None
        self.clients: Execution = self._pool or execute(protocol, shards)

    @property
    def remark(self) -> str:
        """A line on how clients are computed, where that was not asked for by name; or none."""
        return getattr(self.clients, "remark", "")

    @property
    def workers(self) -> int:
        """Processes that run the clients: as asked for, or as many as a cohort can occupy."""
        return 1 if self._pool is None else self._pool.workers

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()

    def run_round(self) -> RoundReport:
        """One round: draw the cohort, compute its sum, step the server.

        Raises:
            ClientError: see :meth:`.Execution.sum`.
        """
        began, server = time.perf_counter(), self.federation
        start = server.start()
        cohort = server.cohort(start.number)
        total = self.clients.sum(start, cohort)
        server.step(total)
        download = sum(download_bytes(server.protocol, client) for client in cohort)
        return RoundReport.of(server, total, time.perf_counter() - began, download)

    def run(self, rounds: int, on_round: Callable[[RoundReport], None] | None = None) -> None:
        """Run until ``rounds`` rounds are complete."""
        while self.federation.round < rounds:
            report = self.run_round()
            self._evaluation.complete(self.federation, report, rounds)
            if on_round is not None:
                on_round(report)


@EXECUTIONS.register("loop")
class Loop:
    """Computes a cohort client by client, in this process."""

    def __init__(self, protocol: Protocol, shards: Sequence[Dataset]) -> None:
        self.protocol, self.shards, self.executor = protocol, shards, Executor(protocol)

    def sum(self, round: Round, cohort: Sequence[int]) -> CohortSum:
        """See :meth:`.Execution.sum`."""
        try:
            return self.executor.settled(round, partial(self.one_by_one, round, cohort))
        except Exception as error:
            if not out_of_memory(error) or not self.executor.moved.give_up():
                raise
        return self.sum(round, cohort)

    def one_by_one(self, round: Round, cohort: Sequence[int]) -> CohortSum:
        """The sum of updates that are asked for in turn."""
        with kept_casts(self.executor.device):
            answer = partial(self.executor.answer, round, self.shards)
            return sum_cohort(self.protocol, round, cohort, answer)
