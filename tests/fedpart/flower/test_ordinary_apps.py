"""What people who know Flower hand over, and what they get back."""

import pytest
import torch
from inprocess_grid import InProcessGrid
from problems import chain_net, shards
from torch.utils.data import DataLoader, TensorDataset

from fedpart import Federation, FederationSettings, LocalSettings, Protocol, Task, federate
from fedpart.flower import FedPart, make_client_app

DATA = shards([9, 8, 7, 6])
SETTINGS = {"method": "partitioned", "chunks": (0.5, 0.5), "cohort": 3, "local": LocalSettings(batch_size=4)}


def loaded(shard):
    return DataLoader(TensorDataset(shard.inputs, shard.targets), batch_size=4, shuffle=True)


class Side:
    def __init__(self, given):
        self.protocol = Protocol(
            Task(chain_net(), samples=1), FederationSettings(clients=len(DATA), **SETTINGS)
        )
        self.shards = [given(shard) for shard in DATA]


def of_loaders(config):
    return Side(loaded)


def of_pairs(config):
    return Side(lambda shard: (shard.inputs.numpy(), shard.targets.numpy()))


@pytest.mark.parametrize("build", [of_loaders, of_pairs])
def test_loaders_and_pairs_are_data_of_clients(build):
    federation = Federation(build({}).protocol)
    result = FedPart(federation).run(InProcessGrid(make_client_app(build), len(DATA), {}), 2)
    expected = federate(Task(chain_net(), samples=1), DATA, rounds=2, **SETTINGS)
    assert torch.equal(federation.w, expected.state.w)
    assert (result.arrays["w"].numpy() == federation.w.numpy()).all()
    for round, report in enumerate(expected.metrics, start=1):
        told = result.train_metrics_clientapp[round]
        assert {name: told[f"psi/{name}"] for name in report.physical} == report.physical
        assert {name: told[f"psi-raw/{name}"] for name in report.psi} == report.psi
    done = FedPart(federation).run(InProcessGrid(make_client_app(build), len(DATA), {}), 2)
    assert (done.arrays["w"].numpy() == federation.w.numpy()).all() and not done.train_metrics_clientapp
