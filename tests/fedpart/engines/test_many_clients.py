"""A round costs what its cohort costs, however many clients are registered."""

import tracemalloc
from functools import partial

import pytest
import torch
from problems import Lazy, augmentation, chain_net, shard

from fedpart import Federation, FederationSettings, Protocol, Task, federate
from fedpart.engines import LocalEngine

MANY = 100_000


def test_only_shards_of_the_cohort_are_read():
    data = Lazy(partial(shard, 4), MANY)
    result = federate(Task(chain_net(), transforms=[augmentation()], samples=2), data, rounds=3)
    assert data.asked == [client for report in result.metrics for client in report.cohort]
    assert len(set(data.asked)) == 30 and max(data.asked) > MANY // 2
    chosen = [*result.state.protocol.assignment.first(MANY)]
    assert [chosen.count(k) / MANY for k in (1, 2, 3)] == [0.7, 0.2, 0.1]


@pytest.mark.parametrize("workers", [1, 2])
def test_memory_hardly_depends_on_them(workers):
    def peak(clients):
        tracemalloc.start()
        federation = Federation(Protocol(task, FederationSettings(clients=clients)))
        with LocalEngine(federation, Lazy(partial(shard, 4), clients), workers) as engine:
            engine.run(2)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    task = Task(chain_net(), samples=1)
    peak(100)  # what is imported and cached on first use
    assert peak(MANY) - peak(100) < 20 * MANY, "bytes per registered client, while chunks are drawn"


def test_a_cohort_is_drawn_without_a_list_of_all():
    protocol = Protocol(Task(torch.nn.Linear(4, 2)), FederationSettings(clients=MANY))
    tracemalloc.start()
    cohorts = [protocol.cohort(round) for round in range(1, 6)]
    assert tracemalloc.get_traced_memory()[1] < MANY
    tracemalloc.stop()
    assert all(len(set(cohort)) == 10 for cohort in cohorts)
