"""Federated training is that of an independent loop over plain torch; L_ML, and what chunk k reaches."""

import pytest
import sizes
import torch
from adapted import frozen_body, frozen_norm, lstm_without_dropout
from problems import (
    Recorder,
    after,
    augmentation,
    chain_net,
    norm_net,
    reference_rounds,
    settings,
    shard,
    shards,
)
from reference_fedavg import federated_averaging
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from fedpart import (
    AdamSettings,
    AffineAugmentation,
    ClipSettings,
    Dataset,
    Federation,
    HyperModule,
    LocalSettings,
    PrivacySettings,
    Protocol,
    Task,
    federate,
)
from fedpart.engines import LocalEngine
from fedpart.engines.executor import Executor
from fedpart.federated.wire import update_scalars
from fedpart.randomness.streams import generator
from fedpart.task.gradients import Job
from fedpart.updates.update import Round

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


def data(sizes=SIZES, shape=(6,), classes=3, dtype=torch.double):
    g = torch.Generator().manual_seed(1)
    inputs = [torch.randn(n, *shape, generator=g).to(dtype) for n in sizes]
    return [(x, torch.randint(0, classes, (len(x),), generator=g)) for x in inputs]


NETWORKS = {"plain": network, "frozen": frozen, "LSTM": Recurrent}
CAPS = {1: 0.6, 2: 0.2, 3: 0.2}  # one client of chunk 2 has the cap 1: it tells psi's gradient and no more
CASES = [
    ("plain", "loop", None),
    ("plain", "fused", CAPS),
    ("frozen", "fused", None),
    ("frozen", "grouped", CAPS),
    ("LSTM", "loop", CAPS),
    ("LSTM", "fused", None),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize("name, execution, caps", CASES)
def test_every_round_is_that_of_the_reference(name, execution, caps):
    network = NETWORKS[name]
    task = Task(network(), transforms=[Brightness()], samples=1, precision="fp64")
    local = LocalSettings(learning_rate=0.5, batch_size=64)
    rates = {"local": local, "server": SERVER, "server_psi": PSI}
    chosen = settings(len(SIZES), chunks=CHUNKS, cohort=6, seed=2, caps=caps, **rates)
    federation = Federation(Protocol(task, chosen))
    partition = federation.partition
    engine = LocalEngine(federation, [Dataset(*shard) for shard in data()], execution=execution)
    weights = {name: p for name, p in network().named_parameters() if p.requires_grad}
    reference = reference_rounds(federation, loss_of(network()), weights, {}, data(), ROUNDS)
    first = federation.psi.clone()
    for w, psi, lml in reference:
        before = federation.w.clone()
        assert engine.run_round().lml == pytest.approx(lml, rel=1e-10)
        torch.testing.assert_close(partition.to_own_order(federation.w), w, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(federation.psi, psi, rtol=1e-12, atol=1e-12)
        assert not torch.equal(before, federation.w)
    assert (federation.psi - first).abs().min() > 1e-3, "both hyperparameters were learned"


FEDAVG_SIZES = [3, 40, 17, 64, 9, 25, 33, 1, 5, 12, 70, 22]  # 17 and 33 leave a batch of one
SEED, FEDAVG_ROUNDS = 5, 4


def cnn():
    """Its parameters lie at odd offsets of a flat vector."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 7, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(7, 13, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(13 * 5 * 5, 37), nn.ReLU(), nn.Linear(37, 10),
    )  # fmt: skip


def batches(client, round, local):
    """The order in which our engine visits the client's examples."""
    n, found = FEDAVG_SIZES[client], []
    for epoch in range(local.epochs):
        order = torch.arange(n)
        if n > local.batch_size:
            order = torch.from_numpy(generator(SEED, "shuffle 1", epoch, client, round).permutation(n))
        found += order.split(local.batch_size)
    return found


FEDAVG, WHOLE = (0.7, 0.2, 0.1), (1.0,)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("batch_size", "epochs", "sgd", "chunks"),
    [(128, 1, {}, FEDAVG), (16, 1, {}, WHOLE), (16, 2, {"momentum": 0.9, "weight_decay": 1e-2}, FEDAVG)],
    ids=["one step", "partitioned with C = 1", "fedavg"],
)
def test_every_round_has_the_same_bits(batch_size, epochs, sgd, chunks, monkeypatch):
    for module in ("fedpart.federated.cohorts", "reference_fedavg"):
        monkeypatch.setattr(f"{module}.BLOCKS", 4)  # of two or three clients
    local = LocalSettings(learning_rate=0.05, batch_size=batch_size, epochs=epochs, **sgd)
    method = "partitioned" if chunks == WHOLE else "fedavg"
    transforms = [] if method == "partitioned" else [AffineAugmentation()]  # FedAvg leaves them out
    chosen = settings(len(FEDAVG_SIZES), method=method, chunks=chunks, cohort=11, seed=SEED, local=local)
    images = data(FEDAVG_SIZES, (1, 14, 14), 10, torch.float32)
    federation = Federation(Protocol(Task(cnn(), transforms=transforms, samples=1), chosen))
    engine = LocalEngine(federation, [Dataset(*shard) for shard in images])

    cohorts = [(round, federation.protocol.cohort(round)) for round in range(1, FEDAVG_ROUNDS + 1)]
    rounds = [[(c, batches(c, round, local)) for c in cohort] for round, cohort in cohorts]
    rates = {"server_learning_rate": chosen.server.learning_rate, "lr": 0.05}
    reference = federated_averaging(cnn(), images, rounds, **rates, **sgd)
    for round, expected in enumerate(reference, start=1):
        engine.run_round()
        for name, tensor in federation.tensors().items():
            assert torch.equal(tensor, expected[name]), f"{name} differs in round {round}"
    assert not torch.equal(federation.w, Federation(federation.protocol).w), "something was learned"


LML_SIZES = (5, 9, 4, 7, 12, 3, 8, 6)


def test_l_ml_is_of_unseen_examples_alone():
    result = federate(Task(chain_net(), samples=1), shards(LML_SIZES), chunks=CHUNKS, cohort=1, rounds=8)
    protocol = result.state.protocol
    for report in result.metrics:
        assert (report.lml is None) == (protocol.chunk(report.cohort[0]) == 1)
    assert {report.lml is None for report in result.metrics} == {True, False}
    for method in ("fedavg", "augerino", "fedex"):
        task = Task(chain_net(), transforms=[augmentation()], samples=1)
        result = federate(task, shards(LML_SIZES), method=method, rounds=1)
        assert [report.lml for report in result.metrics] == [None]
    protocol = Protocol(Task(chain_net()), settings(len(LML_SIZES), chunks=CHUNKS))
    of_chunk_2 = next(client for client in range(len(LML_SIZES)) if protocol.chunk(client) == 2)
    assert protocol.unseen(of_chunk_2, [Job(2, 2), Job(1, psi=True)]) == Job(1, psi=True)
    for jobs in ([Job(2, psi=True)], [Job(1, 1, psi=True)], [Job(3, 3), Job(2, 2)], []):
        assert protocol.unseen(of_chunk_2, jobs) is None


def test_with_privacy_it_does_not_leave_the_client():
    options = {"privacy": PrivacySettings(0.1, randomness="seed"), "clip": ClipSettings(1.0, psi=1.0)}
    options |= {"weighting": "uniform", "chunks": CHUNKS, "cohort": 7}
    result = federate(Task(chain_net()), shards(LML_SIZES), rounds=2, **options)
    assert [report.lml for report in result.metrics] == [None, None]
    protocol = result.state.protocol
    executor, values = Executor(protocol), Round(3, result.state.w, result.state.psi)
    for client, own in enumerate(shards(LML_SIZES)):
        update = executor.run(values, client, own, protocol.plan(client, 3))
        assert update_scalars(update).keys() == {"examples", "loss"}


def trained(task, data, momentum=0.0, weight_decay=0.0, **changes):
    """After two rounds; the server does not step psi, so that its gradient is the same at the same data."""
    local = LocalSettings(0.3, batch_size=4, momentum=momentum, weight_decay=weight_decay)
    fixed = {"chunks": (0.4, 0.3, 0.3), "cohort": 7, "server_psi": AdamSettings(1e-30)}
    return after(2, Recorder(Protocol(task, settings(len(data), local=local, **fixed, **changes))), data)[0]


def plain(build):
    return lambda: Task(build(), transforms=[augmentation()], samples=2)


ZEROS, HEAVY = {"defaults": "zeros"}, {"momentum": 0.9, "weight_decay": 0.1}
SIZED = {"architectures": sizes.ARCHITECTURES}
COUPLED = {"kind": "bank", "budget": 900, "coupled": True}
LEAKS = {
    "norms": (plain(norm_net), ZEROS | HEAVY),
    "sizes": (sizes.task, SIZED),
    **{f"node, {of}": (plain(chain_net), {"scheme": "node", "defaults": of}) for of in ("initial", "zeros")},
    "frozen body": (plain(frozen_body), ZEROS),
    "frozen BatchNorm": (plain(frozen_norm), HEAVY),
    "LSTM": (plain(lstm_without_dropout), {}),
    "tight bank": (sizes.task, SIZED | {"sharing": {"kind": "bank", "clusters": [["*"]]}}),
    "coupled bank": (sizes.task, SIZED | {"sharing": COUPLED}),
    "basis": (sizes.task, SIZED | {"sharing": {"kind": "basis", "inputs": 0.5, "kernels": 0.5}}),
    "random": (plain(chain_net), {}),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", LEAKS)
def test_chunk_k_reaches_no_earlier_partition(name):
    task, changes = LEAKS[name]
    data = shards([3, 9, 6, 11, 2, 7, 5, 10, 8, 4])
    whole = trained(task(), data, **changes)
    for k in (1, 2, 3):
        mine = [client for client in range(len(data)) if whole.protocol.chunk(client) == k]
        replaced = [shard(len(s), 77 + i) if i in mine else s for i, s in enumerate(data)]
        other = trained(task(), replaced, **changes)
        for j in (1, 2, 3):
            w_j = whole.partition.slice(j)
            assert torch.equal(whole.w[w_j], other.w[w_j]) == (j < k), f"chunk {k}, w_{j}"
        gradients = [(a["psi"], b["psi"]) for a, b in zip(whole.totals, other.totals, strict=True)]
        assert any(a is not None and not torch.equal(a, b) for a, b in gradients), "the psi gradient changes"


def test_even_a_failing_chunk_k_client_changes_no_earlier_partition():
    data, runs = shards(LML_SIZES), []
    for broken in (False, True):
        federation = Federation(
            Protocol(Task(chain_net()), settings(8, on_client_error="skip", chunks=CHUNKS))
        )
        last = next(client for client in range(8) if federation.protocol.chunk(client) == 3)
        if broken:
            data[last] = Dataset(data[last].inputs, data[last].targets + 10)
        _, reports = after(1, federation, data)
        assert [s["client"] for r in reports for s in r.skipped] == ([last] if broken else [])
        runs.append(federation.w[: federation.partition.bounds[2]].clone())
    assert torch.equal(*runs)
