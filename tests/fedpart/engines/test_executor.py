"""The client's computation: Eq. 25 and 26 against loops written out by hand."""

from itertools import permutations

import pytest
import torch
from problems import (
    CLASSES,
    AtRound,
    Counted,
    accepted,
    assert_same,
    augmentation,
    chain_net,
    norm_net,
    perturbed,
    settings,
    shard,
    smooth_net,
)
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from fedpart import Batch, Dataset, Federation, FederationSettings, LocalSettings, Protocol, Task
from fedpart.engines.executor import Executor
from fedpart.engines.local import Loop
from fedpart.federated.cohorts import sum_updates
from fedpart.methods.augerino import Augerino
from fedpart.methods.partitioned import Partitioned
from fedpart.partition.partition import AssignedPartition
from fedpart.task.gradients import Job
from fedpart.updates.update import Round

CLIENT, ROUND = 2, 5


def started(task, watched=None, **changes):
    """An executor at perturbed server values, and those; ``watched`` takes the place of the method."""
    protocol = Protocol(task, settings(4, **{"chunks": (0.5, 0.3, 0.2), **changes}))
    if watched is not None:
        protocol.method = watched
    federation = perturbed(protocol)
    return AtRound(Executor(protocol), ROUND, federation.w, federation.psi), federation


def watched(note, kind=Partitioned):
    """A method that tells every call of its loss: weights, psi, batch and noise."""

    class Watched(kind):
        def loss(self, task, job, *values):
            note(*values)
            return super().loss(task, job, *values)

    return Watched()


def assert_same_update(one, other):
    assert one.cells.keys() == other.cells.keys()
    assert all(torch.equal(one.cells[j], other.cells[j]) for j in one.cells)
    assert one.psi is None if other.psi is None else torch.equal(one.psi, other.psi)
    assert one.loss == other.loss


@pytest.mark.quick(1)
@pytest.mark.parametrize("network", [chain_net, norm_net])
def test_every_job_starts_from_the_servers_values(network):
    local = LocalSettings(batch_size=3, epochs=2, learning_rate=0.2)
    executor, federation = started(Task(network(), transforms=[augmentation()], samples=2), local=local)
    data, jobs = shard(7), [Job(2, 2), Job(3, 3), Job(1, psi=True)]
    whole = executor.run(CLIENT, data, jobs)
    for order in permutations(jobs):
        assert_same_update(executor.run(CLIENT, data, order), whole)
    for job in jobs:  # also alone
        alone = executor.run(CLIENT, data, [job])
        if job.psi:
            assert torch.equal(alone.psi, whole.psi) and not alone.cells
        else:
            assert torch.equal(alone.cells[job.partition], whole.cells[job.partition])
    assert_same(federation, perturbed(federation.protocol))  # the server's values stay
    assert all(delta.abs().max() > 0 for delta in whole.cells.values())


def test_subnetworks_are_built_once_per_round_and_not_once_per_client(monkeypatch):
    executor, federation = started(Task(chain_net(), transforms=[augmentation()], samples=1))
    built, honest = [], AssignedPartition.subnetwork
    monkeypatch.setattr(
        AssignedPartition, "subnetwork", lambda self, w, k: built.append(k) or honest(self, w, k)
    )
    for round in (1, 2):
        executor.begin(round, federation.w, federation.psi)
        for client in range(4):
            executor.run(client, shard(7), [Job(2, 2), Job(3, 3), Job(1, psi=True)])
    assert built == [2, 3, 1] * 2


@pytest.mark.parametrize("scheme", ["random", "node"])
def test_local_sgd_by_hand(scheme):
    """w_j alone moves, through w_s^(j), along the batches that were visited."""
    network = chain_net(dropout=False) if scheme == "node" else smooth_net()
    batches, local = [], LocalSettings(batch_size=4, epochs=3, learning_rate=0.3)
    task, method = Task(network, precision="fp64", samples=1), watched(lambda *call: batches.append(call[2]))
    executor, federation = started(task, method, local=local, scheme=scheme)
    update = executor.run(CLIENT, shard(10, seed=8), [Job(j, j) for j in (1, 2, 3)])
    partition = federation.partition
    assert len(batches) == 27
    for j in (1, 2, 3):
        w, moved = federation.w.clone(), partition.slice(j)
        for batch in batches[9 * j - 9 : 9 * j]:
            theta = partition.subnetwork(w, j).requires_grad_()
            tensors = {**partition.space.tensors(theta), **federation.psi_tensors()}
            out = functional_call(task.module, tensors, (batch.inputs.double(),))
            (gradient,) = torch.autograd.grad(F.cross_entropy(out, batch.targets), theta)
            w[moved] -= 0.3 * partition.to_partition_order(gradient)[moved]
        torch.testing.assert_close(update.cells[j], (w - federation.w)[moved], rtol=1e-12, atol=1e-14)


def test_every_epoch_visits_every_example_once_in_its_own_order():
    inputs, local = [], LocalSettings(batch_size=4, epochs=3)
    method = watched(lambda *call: inputs.append(call[2].inputs[:, 0, 0, 0]))
    executor, federation = started(Task(smooth_net()), method, local=local)
    data = Dataset(torch.arange(10.0).view(10, 1, 1, 1).expand(10, 1, 6, 6) / 10, torch.zeros(10).long())

    def orders(round):
        inputs.clear()
        executor.begin(round, federation.w, federation.psi)
        executor.run(CLIENT, data, [Job(2, 2), Job(3, 3)])
        assert [*map(len, inputs)] == [4, 4, 2] * 6
        return [tuple((10 * epoch).round().int().tolist()) for epoch in torch.cat(inputs).split(10)]

    found = orders(1) + orders(2)
    assert all(sorted(order) == list(range(10)) for order in found)
    assert len(set(found)) == len(found) == 12, "no two epochs, partitions or rounds share an order"
    assert orders(1) + orders(2) == found


def assert_psi_gradient(update, federation, k, batch):
    """At the server's values, through subnetwork k."""
    psi = federation.psi.clone().requires_grad_()
    loss = federation.task.loss(federation.partition.materialise(federation.w, k), psi, batch, None)
    (expected,) = torch.autograd.grad(loss, psi)
    torch.testing.assert_close(update.psi, expected, rtol=1e-12, atol=1e-14)
    assert expected.abs().max() > 1e-4


@pytest.mark.parametrize("batch_size", [3, 64])
def test_the_psi_gradient_is_that_of_the_whole_shard_at_the_servers_values(batch_size):
    task = Task(smooth_net(), precision="fp64", samples=1)
    local = LocalSettings(batch_size=batch_size, epochs=2, learning_rate=0.5)
    (executor, federation), data = started(task, local=local), shard(11, seed=4)
    update = executor.run(CLIENT, data, [Job(3, 3), Job(2, psi=True)])
    assert_psi_gradient(update, federation, 2, Batch(data.inputs, data.targets))


def test_a_psi_batch_is_drawn_at_random():
    batches, data, drawn = [], shard(40), []
    method, local = watched(lambda *call: batches.append(call[2])), LocalSettings(batch_size=3, psi_batch=5)
    executor, federation = started(Task(smooth_net(), precision="fp64", samples=1), method, local=local)
    for round in (1, 2):
        batches.clear()
        executor.begin(round, federation.w, federation.psi)
        update = executor.run(CLIENT, data, [Job(1, psi=True)])
        assert [len(batch.inputs) for batch in batches] == [3, 2]
        chosen = torch.cat([batch.inputs for batch in batches])
        drawn.append({i for i in range(40) if any(torch.equal(x, data.inputs[i]) for x in chosen)})
        targets = torch.cat([batch.targets for batch in batches])
        assert_psi_gradient(update, federation, 1, Batch(chosen, targets))
    assert len(drawn[0]) == len(drawn[1]) == 5 and drawn[0] != drawn[1]


def test_augerinos_psi_gradient_is_the_mean_along_the_steps():
    calls = []
    method = watched(lambda *call: calls.append(call[2:]), Augerino)
    base = Task(chain_net(), transforms=[augmentation()], samples=2, precision="fp64")
    local = LocalSettings(batch_size=4, epochs=2, learning_rate=0.4)
    executor, federation = started(base, method, method="augerino", local=local)
    task, space = executor.protocol.task, federation.protocol.partition.space
    update = executor.run(CLIENT, shard(10), [Job(1, 1, psi=True)])

    theta, psi_sum, loss_sum = federation.w.clone(), torch.zeros_like(federation.psi), 0.0
    for batch, noise in list(calls):
        theta.requires_grad_()
        psi = federation.psi.clone().requires_grad_()
        loss = task.loss(space.tensors(theta), psi, batch, noise) + method.regulariser(task, psi)
        by_theta, by_psi = torch.autograd.grad(loss, (theta, psi))
        theta = theta.detach() - 0.4 * by_theta
        psi_sum += by_psi * len(batch.inputs)
        loss_sum += loss.item() * len(batch.inputs)
    torch.testing.assert_close(update.cells[1], theta - federation.w, rtol=1e-10, atol=1e-13)
    assert task.psi_names.index("affine.range") == 0, "the widths come first"
    torch.testing.assert_close(update.psi[:6], psi_sum[:6] / 20, rtol=1e-10, atol=1e-13)
    assert (update.psi[6:] == 0).all(), "dropout stays frozen"
    assert (psi_sum[6:] != 0).all()
    assert update.loss == pytest.approx(loss_sum / 20, rel=1e-12)


def test_an_update_reports_the_loss_of_the_largest_subnetwork():
    executor, _ = started(Task(smooth_net(), samples=1))
    data = shard(5)
    largest = executor.run(CLIENT, data, [Job(3, 3)]).loss
    assert executor.run(CLIENT, data, [Job(3, 3), Job(2, 2), Job(1, psi=True)]).loss == largest
    assert executor.run(CLIENT, data, [Job(2, 2)]).loss != largest


def test_a_network_reads_memory_as_a_plain_module_does():
    """BLAS may give other bits for tensors that do not start at a multiple of 64 bytes."""
    addresses = []

    def note(w, psi, batch, noise):
        addresses.extend(t.data_ptr() for t in (*w.values(), psi, batch.inputs))

    odd = torch.rand(100 * 36 + 1)[1:].view(100, 1, 6, 6)[7:16]
    data = Dataset(odd, torch.arange(9) % CLASSES)
    local = LocalSettings(batch_size=64, epochs=2)
    executor, federation = started(Task(chain_net(), samples=1), watched(note), local=local)
    psi = torch.empty(len(federation.psi) + 1)[1:].copy_(federation.psi)  # as from a message's bytes
    executor.begin(ROUND, federation.w, psi)
    executor.run(CLIENT, data, [Job(2, 2), Job(3, 3), Job(1, psi=True)])
    assert addresses and all(address % 64 == 0 for address in addresses)


@pytest.mark.parametrize(("scaling", "power"), [("reciprocal", 1.0), ("square_root", 0.5), ("none", 0.0)])
def test_weight_decay_is_stronger_for_earlier_partitions(scaling, power):
    """Of two runs that differ in weight decay alone, one step differs by lr * decay / share^power * w_j."""
    task, moves = Task(smooth_net(), precision="fp64", samples=1), []
    for decay in (0.0, 0.01):
        local = LocalSettings(learning_rate=0.3, weight_decay=decay, decay_scaling=scaling)
        executor, federation = started(task, local=local)
        moves.append(executor.run(CLIENT, shard(5), [Job(j, j) for j in (1, 2, 3)]).cells)
    for j, share in enumerate((0.5, 0.8, 1.0), start=1):  # of the clients in chunks 1..j
        w_j = federation.w[federation.protocol.partition.slice(j)]
        torch.testing.assert_close(moves[0][j] - moves[1][j], 0.3 * 0.01 / share**power * w_j)


@pytest.mark.parametrize("epochs", [1, 3])
def test_weights_that_clients_share_are_cast_once_and_their_own_at_every_step(epochs):
    task = Task(nn.Linear(5, CLASSES), hyperparameters=["bias"], samples=1, precision="bf16")
    local = LocalSettings(0.1, 64, epochs=epochs)
    protocol = Protocol(task, FederationSettings(clients=4, cohort=4, method="fedavg", local=local))
    federation = Federation(protocol)
    torch.manual_seed(0)
    shards = [Dataset(torch.randn(7, 5), torch.randint(CLASSES, (7,))) for _ in range(4)]
    round = Round(1, federation.w, federation.psi)

    def is_cast(func, args, kwargs):
        to_half = func is torch.ops.aten._to_copy.default and kwargs.get("dtype") is torch.bfloat16
        return to_half and args[0].dtype is torch.float32 and args[0].shape == (CLASSES, 5)

    with Counted(is_cast) as casts:
        found = Loop(protocol, shards).sum(round, range(4)).total
    assert casts.count == (1 if epochs == 1 else 4 * epochs)
    executor = Executor(protocol)
    alone = [accepted(protocol, c, executor.answer(round, shards, c), round)[0] for c in range(4)]
    assert_same_update(found, sum_updates(alone))
