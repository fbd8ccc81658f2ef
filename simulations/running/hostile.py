"""Hostile clients: a cohort on this machine, some of which attack."""

from collections.abc import Callable, Sequence
from functools import partial

from fedpart import Dataset, Protocol
from fedpart.engines.executor import Executor
from fedpart.engines.local import Loop
from fedpart.federated.cohorts import CohortSum
from fedpart.randomness.streams import generator
from fedpart.task.gradients import Job
from fedpart.updates.update import Round, Update
from simulations.attacks import ATTACKS, Attack
from simulations.building.experiment import Experiment


def attacked(experiment: Experiment) -> "Callable[[Protocol, Sequence[Dataset]], Attacked]":
    """What computes the cohorts of an experiment that has an ``attack``."""
    section = experiment.config.attack
    attack = ATTACKS.make(section.kind, section.options)
    hostile = hostile_clients(experiment.protocol, attack, section.share)
    options = {"classes": experiment.num_classes, "once": section.once}
    return partial(Attacked, attack=attack, hostile=hostile, **options)


def hostile_clients(protocol: Protocol, attack: Attack, share: float) -> frozenset[int]:
    """Who attacks, drawn by the seed: a share of clients, or with ``on_psi`` of those in chunks 2 to C."""
    clients = range(protocol.settings.clients)
    able = [client for client in clients if not attack.on_psi or protocol.chunk(client) > 1]
    count = max(1, round(share * len(able)))
    rng = generator(protocol.settings.seed, "hostile")
    return frozenset(rng.choice(able, count, replace=False).tolist())


class Attacked(Loop):
    """Computes a cohort client by client; the hostile ones see what the others send before they do."""

    def __init__(
        self,
        protocol: Protocol,
        shards: Sequence[Dataset],
        attack: Attack,
        hostile: frozenset[int],
        classes: int,
        once: int | None,  # each attacks in its first round from this one on; None: in all
    ) -> None:
        wrong = list(shards)
        for client in sorted(hostile):
            wrong[client] = attack.shard(wrong[client], classes)
        super().__init__(protocol, wrong)
        self.executor = self._clients = _Clients(protocol, attack, hostile, once)

    def sum(self, round: Round, cohort: Sequence[int]) -> CohortSum:
        self._clients.compute(round, cohort, self.shards)
        return self.one_by_one(round, cohort)


class _Clients(Executor):
    """What the clients of a cohort send, all computed before the first of them is asked."""

    def __init__(self, protocol: Protocol, attack: Attack, hostile: frozenset[int], once: int | None) -> None:
        super().__init__(protocol)
        self._attack, self._hostile = attack, hostile
        self._once = once
        self._sent: dict[int, Update | Exception] = {}

    def compute(self, round: Round, cohort: Sequence[int], shards: Sequence[Dataset]) -> None:
        """Run everybody; then the hostile ones change what they send."""
        self._sent = {}
        for client in cohort:
            try:
                jobs = self.protocol.plan(client, round.number)
                self._sent[client] = super().run(round, client, shards[client], jobs)
            except Exception as error:  # the client's: raised when it is asked
                self._sent[client] = error
        done = {client: update for client, update in self._sent.items() if isinstance(update, Update)}
        honest = [update for client, update in done.items() if client not in self._hostile]
        for client in done.keys() & self._hostile:
            if self._once is None or self._turn(client, round.number, self._once):
                self._attack.upload(done[client], honest)

    def _turn(self, client: int, now: int, start: int) -> bool:
        """Whether this is the client's first round from ``start`` on, also in a run that was resumed."""
        return now >= start and not any(client in self.protocol.cohort(round) for round in range(start, now))

    def run(self, round: Round, client: int, shard: Dataset, jobs: Sequence[Job]) -> Update:
        """See :meth:`.Executor.run`: what :meth:`compute` has left."""
        sent = self._sent.pop(client)
        if isinstance(sent, Exception):
            raise sent
        return sent
