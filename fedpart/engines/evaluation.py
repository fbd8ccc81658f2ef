"""Clients score the network on what they hold out of training, on this machine."""

import time
from collections.abc import Sequence
from functools import cached_property, partial

import torch

from fedpart.data.dataset import Dataset
from fedpart.engines.batches import evaluated
from fedpart.engines.executor import Executor
from fedpart.federated.cohorts import state_bytes
from fedpart.federated.evaluation import ClientScores, check_score, evaluation_cohort, is_due
from fedpart.federated.federation import Federation
from fedpart.federated.protocol import Protocol
from fedpart.federated.report import RoundReport
from fedpart.task.held_out import HeldOutScore, has_hits, score
from fedpart.updates.errors import blamed
from fedpart.updates.update import Round

HEADERS = 835  # bytes of a question and its answer besides the state, about; nothing is sent here


class ClientEvaluation:
    """The clients' evaluations of a run whose settings ask for them, computed here client by client."""

    def __init__(self, protocol: Protocol, shards: Sequence[Dataset], every: int) -> None:
        self._protocol, self._shards, self._every = protocol, shards, every

    def complete(self, federation: Federation, report: RoundReport, last: int) -> None:
        """Add to the report of a round, if it is due, what clients make of the network after it."""
        settings, start = self._protocol.settings, time.perf_counter()
        if not is_due(settings, report.round, self._every, last):
            return
        round = federation.start(federation.round)
        scores = ClientScores(self._protocol, evaluation_cohort(settings, round.number), round.trial)
        scores.gather(partial(self._score, round))
        scores.write(report)
        state = sum(map(partial(state_bytes, self._protocol), scores.cohort))
        report.evaluation_bytes = state + len(scores.cohort) * HEADERS
        report.seconds += time.perf_counter() - start

    def _score(self, round: Round, client: int) -> HeldOutScore:
        with blamed(client, round.number):
            return evaluate(self._executor, round, client, self._shards[client])

    @cached_property
    def _executor(self) -> Executor:
        return Executor(self._protocol)


def evaluate(executor: Executor, round: Round, client: int, shard: Dataset) -> HeldOutScore:
    """The network at the server's values, up to the client's cap, on its examples for evaluations.

    Stochastic layers are off; transforms sample, with noise that (seed, round, client) decides."""
    protocol = executor.protocol
    view = executor.view(round, client)
    data = executor.checked(client, evaluated(protocol, client, shard), "evaluation").to(executor.device)
    batches = torch.split(torch.arange(len(data)), protocol.settings.local.batch_size)
    point = executor.point(executor.scored(client, round), protocol.partition_of(client), view.cap)
    noisy = executor.noisy(view, data, "client evaluation", batches if len(data) else ())
    scores = score(protocol.scoring_task(client), point.tensors, view.server_psi(), noisy)
    check_score(scores, has_hits(protocol.task), protocol.settings.max_examples)
    return scores
