"""C = 1 with psi frozen is FedAvg: bit for bit that of an independent loop over plain torch modules."""

import pytest
import torch
from problems import settings
from reference_fedavg import federated_averaging
from torch import nn

from fedpart import AffineAugmentation, Dataset, Federation, LocalSettings, Protocol, Task
from fedpart.engines import LocalEngine
from fedpart.randomness.streams import generator

SIZES = [3, 40, 17, 64, 9, 25, 33, 1, 5, 12, 70, 22]  # 17 and 33 leave a batch of one
SEED, ROUNDS = 5, 6


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


def data():
    g = torch.Generator().manual_seed(1)
    return [(torch.rand(n, 1, 14, 14, generator=g), torch.randint(0, 10, (n,), generator=g)) for n in SIZES]


def batches(client, round, local):
    """The order in which our engine visits the client's examples."""
    n, found = SIZES[client], []
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
    chosen = settings(len(SIZES), method=method, chunks=chunks, cohort=11, seed=SEED, local=local)
    federation = Federation(Protocol(Task(cnn(), transforms=transforms, samples=1), chosen))
    engine = LocalEngine(federation, [Dataset(*shard) for shard in data()])

    cohorts = [(round, federation.protocol.cohort(round)) for round in range(1, ROUNDS + 1)]
    rounds = [[(c, batches(c, round, local)) for c in cohort] for round, cohort in cohorts]
    rates = {"server_learning_rate": chosen.server.learning_rate, "lr": 0.05}
    reference = federated_averaging(cnn(), data(), rounds, **rates, **sgd)
    for round, expected in enumerate(reference, start=1):
        engine.run_round()
        for name, tensor in federation.tensors().items():
            assert torch.equal(tensor, expected[name]), f"{name} differs in round {round}"
    assert not torch.equal(federation.w, Federation(federation.protocol).w), "something was learned"
