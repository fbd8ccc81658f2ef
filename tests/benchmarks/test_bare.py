"""The bare loops that engines are measured against compute what the engines compute."""

from dataclasses import replace

import pytest
import torch

import fedpart.nn.models
from benchmarks.rounds import bare
from benchmarks.rounds.bare import LocalWork
from benchmarks.rounds.networks import Model, resnet9
from benchmarks.rounds.ours import make_protocol
from benchmarks.rounds.workloads import WORKLOADS, Workload
from fedpart import Dataset, Federation
from fedpart.engines import LocalEngine
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.randomness.streams import generator

SMALL = {"model": "digits_cnn", "clients": 12, "examples": 5, "cohort": 5, "samples": 2}


class FedpartsNumbers(LocalWork):
    """A client's work with the random numbers that fedpart draws."""

    def __init__(self, federation: Federation, *work) -> None:
        super().__init__(*work)
        self.federation, self.seed = federation, federation.protocol.settings.seed

    def uniform(self, job, step):
        client, j = job
        purpose = "psi" if j is None else f"train {j}"
        key = NoiseKey(self.seed, purpose, (step, client, self.federation.round + 1))
        noise = Noise(key, dtype=torch.float64)
        first = iter([True])  # the draw of the affine maps; those of dropout, which follow, are coarse
        return lambda like: noise.uniform(like.shape, coarse=not next(first, False))

    def order(self, job, examples):
        client, j = job
        name, counter = ("psi batch", ()) if j is None else (f"shuffle {j}", (0,))
        rng = generator(self.seed, name, *counter, client, self.federation.round + 1)
        return torch.from_numpy(rng.permutation(examples))


def side_by_side(workload: Workload, network=None):
    """An engine's federation and a bare loop from the same start, both in double precision."""
    federation = Federation(make_protocol(workload, precision="fp64", channels_last=False))
    protocol = federation.protocol
    data = [workload.shard(client) for client in range(workload.clients)]
    engine = LocalEngine(federation, [Dataset(x.double(), y) for x, y in data])
    model = bare.build(workload) if network is None else Model(network, workload.samples, workload.affine)
    with torch.no_grad():
        for weight, value in zip(model.weights, federation.tensors().values(), strict=True):
            weight.copy_(value)
    model.double()
    work = FedpartsNumbers(federation, model, [(x.double(), y) for x, y in data], workload)
    if workload.partitioned:
        return engine, bare.BarePartitioned(work, protocol.partition.assignment)
    return engine, bare.BareFedAvg(work)


def run(engine, loop, rounds):
    protocol = engine.federation.protocol
    for round in range(1, rounds + 1):
        loop.round([(client, protocol.chunk(client)) for client in protocol.cohort(round)])
        engine.run_round()


@pytest.mark.parametrize(
    "workload",
    [
        replace(WORKLOADS["W1"], **{**SMALL, "samples": 1}),
        replace(WORKLOADS["W2"], **SMALL),
        replace(WORKLOADS["W2"], **SMALL, batch_size=2),
    ],
    ids=["W1", "W2", "several steps"],
)
def test_fedavg(workload):
    engine, loop = side_by_side(workload)
    before = [w.clone() for w in loop.weights]
    run(engine, loop, 3)
    for old, w, expected in zip(before, loop.weights, engine.federation.tensors().values(), strict=True):
        assert not old.allclose(w)
        torch.testing.assert_close(w, expected, rtol=0, atol=1e-10)


NARROW = SMALL | {"model": "test_bare:narrow", "shape": (2, 8, 8), "chunks": (0.6, 0.4)}
W4 = replace(WORKLOADS["W4"], **NARROW, batch_size=3, psi_batch=4)


def narrow(num_classes, input_shape, dropout):
    return fedpart.nn.models.resnet9(num_classes, input_shape, dropout, width=4, groups=2)


@pytest.mark.parametrize(
    "workload, network",
    [
        (replace(WORKLOADS["W3"], **SMALL), None),
        (replace(WORKLOADS["W3"], **SMALL, batch_size=3), None),
        (W4, resnet9(10, (2, 8, 8), 0.1, width=4, groups=2)),
    ],
    ids=["W3", "several steps", "W4"],
)
def test_partitioned(workload, network):
    engine, loop = side_by_side(workload, network)
    federation = engine.federation
    run(engine, loop, 3)
    for k in range(1, len(workload.chunks) + 1):
        w_k = federation.w[federation.partition.slice(k)]
        assert not w_k.allclose(federation.partition.initial()[federation.partition.slice(k)])
        torch.testing.assert_close(loop.w[k - 1], w_k, rtol=0, atol=1e-10)
    psi = torch.cat([parameter.detach().reshape(-1) for parameter in loop.work.model.psi])
    assert not psi.allclose(federation.task.psi_space.initial())
    torch.testing.assert_close(psi, federation.psi, rtol=0, atol=1e-10)
