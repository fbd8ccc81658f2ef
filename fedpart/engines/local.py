"""The in-process engine: a loop over the cohort, updates summed as they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from fedpart.data.dataset import Dataset
from fedpart.executor import ClientError, Executor
from fedpart.federation import Federation, RoundReport
from fedpart.update import Update, sum_cohort

# What a Flower message holds besides its numbers, about; nothing is sent in this process.
UPLOAD_HEADER, DOWNLOAD_HEADER = 509, 710


class LocalEngine:
    """Runs rounds of a federation in this process.

    Args:
        federation: the state.
        shards: ``shards[client]`` is the client's data; a list, or anything lazy with ``__getitem__``.
    """

    def __init__(self, federation: Federation, shards: Sequence[Dataset]) -> None:
        self.federation, self.shards = federation, shards
        self.executor = Executor(federation.protocol)

    def run_round(self) -> RoundReport:
        """One round: sample, execute, sum, step.

        Raises:
            ClientError: a client failed, or its update was refused, and the settings say ``fail``.
        """
        federation, protocol = self.federation, self.federation.protocol
        start, round = time.perf_counter(), federation.round + 1
        cohort = protocol.cohort(round)
        self.executor.begin(round, federation.w, federation.psi)
        skipped: list[dict[str, Any]] = []
        sizes = [0]

        def term(client: int) -> Update | None:
            update = self._update(client, round, skipped)
            if update is None:
                return None
            sizes[0] += update.numbers() * federation.w.element_size() + UPLOAD_HEADER
            return update.weigh(protocol.client_weight(update.examples))

        total = sum_cohort(cohort, term)
        federation.step(total)
        numbers = len(federation.w) + len(federation.psi)
        download = len(cohort) * (numbers * federation.w.element_size() + DOWNLOAD_HEADER)
        return federation.report(time.perf_counter() - start, cohort, total, sizes[0], download, skipped)

    def run(self, rounds: int, on_round: Callable[[RoundReport], None] | None = None) -> None:
        """Run until ``rounds`` rounds are complete."""
        while self.federation.round < rounds:
            report = self.run_round()
            if on_round is not None:
                on_round(report)

    def _update(self, client: int, round: int, skipped: list[dict[str, Any]]) -> Update | None:
        protocol = self.federation.protocol
        jobs = protocol.plan(client, round)
        try:
            update = self.executor.run(client, self.shards[client], jobs)
            try:
                protocol.check(update, jobs)
            except ValueError as error:
                raise ClientError(
                    f"The update of client {client} in round {round} was refused: {error}."
                ) from error
            return update
        except ClientError as error:
            failure = error
        except Exception as error:
            failure = ClientError.of(client, round, error)
            failure.__cause__ = error
        if protocol.settings.on_client_error == "fail":
            raise failure
        skipped.append({"client": client, "reason": str(failure)})
        return None
