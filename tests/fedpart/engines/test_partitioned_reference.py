"""Federated partitioned training is that of an independent loop over plain torch, round by round."""

import ast
from pathlib import Path

import pytest
import reference_fedavg
import reference_partitioned
import torch
from problems import settings
from reference_fedavg import federated_averaging
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from fedpart import (
    AdamSettings,
    AffineAugmentation,
    Dataset,
    Federation,
    HyperModule,
    LocalSettings,
    Protocol,
    Task,
)
from fedpart.engines import LocalEngine
from fedpart.randomness.streams import generator

SIZES, ROUNDS, CHUNKS = (5, 9, 4, 7, 12, 3, 8, 6, 10, 2), 5, (0.5, 0.3, 0.2)
SERVER, PSI = AdamSettings(3e-2), AdamSettings(5e-2)


class Brightness(HyperModule):
    """A transform without noise, so that both loops see the same."""

    hyperparameters = ("scale", "shift")

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor([1.5])), nn.Parameter(torch.tensor([0.3]))

    def forward(self, x):
        return x * self.scale + self.shift


def loss_of(module):
    """Mean negative log-likelihood; psi are the hyperparameters of the transform."""

    def loss(weights, psi, inputs, targets):
        return F.cross_entropy(functional_call(module, weights, (inputs * psi[0] + psi[1],)), targets)

    return loss


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 11), nn.Tanh(), nn.Linear(11, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def frozen():
    """The same, its second layer a constant."""
    net = network()
    net[2].requires_grad_(False)
    return net


class Recurrent(nn.Module):
    """Six numbers as a sequence of three steps."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.LSTM(2, 4, 2, batch_first=True, bidirectional=True)
        self.last = nn.Linear(8, 3)
        self.double()

    def forward(self, x):
        return self.last(self.body(x.view(-1, 3, 2))[0].mean(1))


def data():
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 6, generator=g).double(), torch.randint(0, 3, (n,), generator=g)) for n in SIZES]


@pytest.mark.parametrize(
    "reference, known", [(reference_partitioned, {"torch"}), (reference_fedavg, {"copy", "torch"})]
)
def test_a_reference_is_short_and_knows_nothing_of_ours(reference, known):
    text = Path(reference.__file__).read_text()
    assert len(text.splitlines()) <= 60
    tree = ast.parse(text)
    names = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} == known


NETWORKS = {"plain": network, "frozen": frozen, "LSTM": Recurrent}
CAPS = {1: 0.6, 2: 0.2, 3: 0.2}  # one client of chunk 2 has the cap 1: it tells psi's gradient and no more
CASES = [(name, execution, None) for name in NETWORKS for execution in ("loop", "fused", "vectorised")]
CASES.remove(("LSTM", "vectorised", None))
CASES += [("plain", execution, CAPS) for execution in ("loop", "fused", "vectorised")]


@pytest.mark.parametrize("name, execution, caps", CASES)
def test_every_round_is_that_of_the_reference(name, execution, caps):
    network = NETWORKS[name]
    task = Task(network(), transforms=[Brightness()], samples=1, precision="fp64")
    local = LocalSettings(learning_rate=0.5, batch_size=64)
    rates = {"local": local, "server": SERVER, "server_psi": PSI}
    chosen = settings(len(SIZES), chunks=CHUNKS, cohort=6, seed=2, caps=caps, **rates)
    federation = Federation(Protocol(task, chosen))
    protocol, partition = federation.protocol, federation.protocol.partition
    engine = LocalEngine(federation, [Dataset(*shard) for shard in data()], execution=execution)
    reference = reference_partitioned.partitioned(
        loss_of(network()),
        {name: p for name, p in network().named_parameters() if p.requires_grad},
        {},
        federation.psi.clone(),
        partition.assignment,
        data(),
        [protocol.chunk(client) for client in range(len(SIZES))],
        [protocol.cap(client) for client in range(len(SIZES))],
        [protocol.cohort(round) for round in range(1, ROUNDS + 1)],
        lr=local.learning_rate,
        server_lr=SERVER.learning_rate,
        psi_lr=PSI.learning_rate,
    )
    first = federation.psi.clone()
    for w, psi in reference:
        before = federation.w.clone()
        engine.run_round()
        torch.testing.assert_close(partition.to_own_order(federation.w), w, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(federation.psi, psi, rtol=1e-12, atol=1e-12)
        assert not torch.equal(before, federation.w)
    assert (federation.psi - first).abs().min() > 1e-3, "both hyperparameters were learned"


FEDAVG_SIZES = [3, 40, 17, 64, 9, 25, 33, 1, 5, 12, 70, 22]  # 17 and 33 leave a batch of one
SEED, FEDAVG_ROUNDS = 5, 6


def cnn():
    """Its parameters lie at odd offsets of a flat vector."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 7, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(7, 13, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(13 * 5 * 5, 37),
        nn.ReLU(),
        nn.Linear(37, 10),
    )


def fedavg_data():
    g = torch.Generator().manual_seed(1)
    return [
        (torch.rand(n, 1, 14, 14, generator=g), torch.randint(0, 10, (n,), generator=g)) for n in FEDAVG_SIZES
    ]


def batches(client, round, local):
    """The order in which our engine visits the client's examples."""
    n, found = FEDAVG_SIZES[client], []
    for epoch in range(local.epochs):
        order = torch.arange(n)
        if n > local.batch_size:
            order = torch.from_numpy(generator(SEED, "shuffle 1", epoch, client, round).permutation(n))
        found += order.split(local.batch_size)
    return found


@pytest.mark.parametrize("chunks", [(0.7, 0.2, 0.1), (1.0,)], ids=["fedavg", "partitioned with C = 1"])
@pytest.mark.parametrize(
    ("batch_size", "epochs", "sgd"),
    [(128, 1, {}), (16, 1, {}), (16, 2, {}), (16, 2, {"momentum": 0.9, "weight_decay": 1e-2})],
)
def test_every_round_has_the_same_bits(batch_size, epochs, sgd, chunks, monkeypatch):
    for module in ("fedpart.federated.cohorts", "reference_fedavg"):
        monkeypatch.setattr(f"{module}.BLOCKS", 4)  # of two or three clients
    local = LocalSettings(learning_rate=0.05, batch_size=batch_size, epochs=epochs, **sgd)
    method = "partitioned" if chunks == (1.0,) else "fedavg"
    transforms = [] if method == "partitioned" else [AffineAugmentation()]  # FedAvg leaves them out
    chosen = settings(len(FEDAVG_SIZES), method=method, chunks=chunks, cohort=11, seed=SEED, local=local)
    federation = Federation(Protocol(Task(cnn(), transforms=transforms, samples=1), chosen))
    engine = LocalEngine(federation, [Dataset(*shard) for shard in fedavg_data()])

    cohorts = [(round, federation.protocol.cohort(round)) for round in range(1, FEDAVG_ROUNDS + 1)]
    rounds = [[(c, batches(c, round, local)) for c in cohort] for round, cohort in cohorts]
    rates = {"server_learning_rate": chosen.server.learning_rate, "lr": 0.05}
    reference = federated_averaging(cnn(), fedavg_data(), rounds, **rates, **sgd)
    for round, expected in enumerate(reference, start=1):
        engine.run_round()
        for name, tensor in federation.tensors().items():
            assert torch.equal(tensor, expected[name]), f"{name} differs in round {round}"
    assert not torch.equal(federation.w, Federation(federation.protocol).w), "something was learned"
