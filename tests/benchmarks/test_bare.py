"""The bare loop is what fedpart computes; memory: how many updates are held."""

import multiprocessing
import weakref
from dataclasses import replace

import pytest
import torch
from flower_experiment import CLIENTS, app, build
from inprocess_grid import InProcessGrid
from problems import settings, shards, smooth_net

import fedpart.nn.models
from benchmarks.rounds import bare
from benchmarks.rounds.bare import LocalWork
from benchmarks.rounds.ours import make_protocol, make_shards
from benchmarks.rounds.workloads import WORKLOADS
from fedpart import Dataset, Federation, Protocol, Task
from fedpart.engines import LocalEngine
from fedpart.flower.strategy import FedPart
from fedpart.randomness.noise import Noise, NoiseKey
from fedpart.randomness.streams import generator
from fedpart.training.local import LocalSGD

SMALL = {"model": "digits_cnn", "clients": 12, "examples": 5, "cohort": 5, "samples": 2}


class FedpartsNumbers(LocalWork):
    """A client's work with the random numbers that fedpart draws."""

    def __init__(self, federation, *work):
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


def side_by_side(workload):
    """An engine's federation and a bare loop from the same start, both in double precision."""
    federation = Federation(make_protocol(workload, precision="fp64", channels_last=False))
    protocol = federation.protocol
    data = [workload.shard(client) for client in range(workload.clients)]
    engine = LocalEngine(federation, [Dataset(x.double(), y) for x, y in data])
    model = bare.build(workload)
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


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "workload",
    [replace(WORKLOADS["W3"], **SMALL), replace(WORKLOADS["W3"], **SMALL, batch_size=3), W4],
    ids=["W3", "several steps", "W4"],
)
def test_partitioned(workload):
    engine, loop = side_by_side(workload)
    federation = engine.federation
    run(engine, loop, 3)
    for k in range(1, len(workload.chunks) + 1):
        w_k = federation.w[federation.partition.slice(k)]
        assert not w_k.allclose(federation.partition.initial()[federation.partition.slice(k)])
        torch.testing.assert_close(loop.w[k - 1], w_k, rtol=0, atol=1e-10)
    psi = torch.cat([parameter.detach().reshape(-1) for parameter in loop.work.model.psi])
    assert not psi.allclose(federation.task.psi_space.initial())
    torch.testing.assert_close(psi, federation.psi, rtol=0, atol=1e-10)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_has_a_round_of_the_same_network_on_both_sides(name):
    workload = replace(WORKLOADS[name], clients=3, cohort=1, examples=12, samples=1)
    federation = Federation(make_protocol(workload))
    work = LocalWork(bare.build(workload), [*map(workload.shard, range(3))], workload)
    loop = (bare.BarePartitioned if workload.partitioned else bare.BareFedAvg)(work)
    loop.round([(0, federation.protocol.chunk(0))])
    report = LocalEngine(federation, make_shards(workload)).run_round()
    assert report.replies == 1 and report.examples >= 12
    shapes = [tensor.shape for tensor in federation.tensors().values()]
    assert [weight.shape for weight in work.model.weights] == shapes


SMALL_MEMORY, LARGE = 2, 300  # of 300 clients, some blocks have two


class Living:
    """Counts objects that are alive, in whichever process they are; ``most`` is seen by all."""

    def __init__(self):
        self.now, self.most = 0, multiprocessing.get_context("fork").RawValue("i", 0)

    def watch(self, thing):
        self.now += 1
        self.most.value = max(self.most.value, self.now)
        weakref.finalize(thing, self.end)

    def end(self):
        self.now -= 1


def most_updates(monkeypatch, cohort, workers):
    """The largest number of living tensors that hold changes of w_C, beside shared memory."""
    task = Task(smooth_net(), samples=1)
    federation = Federation(Protocol(task, settings(LARGE, cohort=cohort)))
    living, honest, numbers = Living(), LocalSGD.change, federation.partition.sizes[-1]

    def change(self):
        result = honest(self)
        if len(result) == numbers:
            living.watch(result)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(LocalSGD, "change", change)
        with LocalEngine(federation, shards([2] * LARGE), workers) as engine:
            engine.run(1 if cohort == LARGE else 2)
    return living.most.value


@pytest.mark.slow
def test_one_process_holds_the_sums_of_cohort_and_block_and_an_update(monkeypatch):
    assert most_updates(monkeypatch, SMALL_MEMORY, 1) == 2, "blocks of one client are no sums of their own"
    assert most_updates(monkeypatch, LARGE, 1) == 3


@pytest.mark.slow
def test_a_worker_holds_the_sum_of_a_block_and_an_update(monkeypatch):
    """The sum of the cohort is in shared memory, whose size test_workers.py knows."""
    assert most_updates(monkeypatch, SMALL_MEMORY, 2) == 1
    assert most_updates(monkeypatch, LARGE, 2) == 2


class Streaming(InProcessGrid):
    """Answers a message when its reply is wanted."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.living = Living()

    def send_and_receive(self, messages, *, timeout=None):
        for message in messages:
            (reply,) = self.pull_messages(self.push_messages([message]))
            self.living.watch(reply)
            yield reply
            del reply


@pytest.mark.slow
@pytest.mark.parametrize("backwards", [False, True])
def test_the_strategy_keeps_no_reply_that_is_in_its_turn(backwards):
    grid = Streaming(app, CLIENTS)
    strategy = FedPart(Federation(build({}).protocol))
    strategy.run(grid, 1)
    grid.living.most.value = 0
    if backwards:  # the worst case: the whole cohort waits for its first client
        forwards = grid.send_and_receive
        grid.send_and_receive = lambda messages, timeout=None: forwards(messages[::-1])
    strategy.run(grid, 2)
    assert grid.living.most.value == (5 if backwards else 1)
