"""Runs whose uploads are encoded: the same bits on every engine and after a stop, and what travels."""

import pytest
import torch
from parity import assert_parity
from problems import augmentation, chain_net, nothing, settings, shards

from fedpart import Federation, Protocol, Task
from fedpart.engines import LocalEngine
from fedpart.federated.cohorts import expected_upload_ratio
from fedpart.updates.update import Update


@pytest.mark.parametrize("name", ["int8", "int4", "topk"])
def test_clients_that_are_computed_together_are_rounded_alike(name):
    task = Task(chain_net(), transforms=[augmentation()], samples=2, precision="fp64")
    assert_parity(task, 1e-6, upload=name)


def test_bytes_are_those_of_the_codes_and_of_psi_as_it_is():
    chunks, task = (0.5, 0.3, 0.2), Task(chain_net(), samples=2)
    protocol = Protocol(task, settings(10, chunks=chunks, upload="int4"))
    reports = []
    LocalEngine(Federation(protocol), shards(range(3, 13))).run(1, reports.append)
    sizes = [-(-n // 2) + 4 * -(-n // 64) for n in protocol.partition.sizes]
    whole = 4 * protocol.partition.space.size
    psi = sum(4 * protocol.task.psi_space.size for client in range(10) if protocol.chunk(client) > 1)
    coded = sum(sum(sizes[protocol.chunk(client) - 1 :]) for client in range(10))
    assert reports[0].upload_bytes - coded - psi == 10 * 569
    assert expected_upload_ratio(protocol) == pytest.approx(coded / (10 * whole), abs=1e-12)


def test_rounding_is_a_function_of_seed_client_round_and_partition():
    def rounded(seed, client, round):
        """What becomes of the same numbers in two partitions."""
        known = {"chunks": (0.5, 0.5), "upload": "int4", "seed": seed}
        protocol = Protocol(Task(chain_net()), settings(10, **known))
        deltas = {j: torch.linspace(-1, 1, 64).repeat(2) for j in (1, 2)}
        found = protocol.send(Update(deltas), client, nothing(round))
        return [tuple(found.deltas[j].tolist()) for j in (1, 2)]

    assert rounded(0, 1, 1) == rounded(0, 1, 1)
    others = [rounded(0, 1, 1), rounded(1, 1, 1), rounded(0, 2, 1), rounded(0, 1, 2)]
    assert len({part for parts in others for part in parts}) == 8
