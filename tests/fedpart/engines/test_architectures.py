"""Clients with networks of different sizes train one set of numbers, each uploading its part."""

from collections import OrderedDict
from functools import partial

import pytest
import sizes
import torch
from problems import CLASSES, SIZE, after, augmentation, chain_net, settings, shard, shards
from sizes import ARCHITECTURES, CHUNKS, EXAMPLES, SHARES, WIDTHS, assert_same, assert_workers_have_the_bits
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from fedpart import (
    ClipSettings,
    ConcreteDropout,
    DeviceSettings,
    Federation,
    LocalSettings,
    PrivacySettings,
    Protocol,
    SGDSettings,
    Task,
)
from fedpart.engines.evaluation import evaluate
from fedpart.engines.executor import Executor
from fedpart.engines.paced import Turns
from fedpart.federated.cohorts import expected_upload_ratio
from fedpart.updates.stages import Privacy
from fedpart.updates.update import PSI, Round

net = partial(sizes.net, hidden=1)


def task():
    return sizes.task(net)


def run(rounds=3, the_task=None, *more, **changes):
    return sizes.run(rounds, the_task or task(), *more, **changes)


def test_a_mean_over_the_clients_that_have_a_number_written_out():
    """FedAvg with the server's plain mean, two rounds in float64: HeteroFL's rule, written out."""
    data = [one.to("cpu") for one in shards(EXAMPLES)]
    plain = Task(net(dropout=False), samples=1, precision="fp64", sizes=lambda width: net(width, False))
    local = LocalSettings(0.3, batch_size=99)
    found = run(2, plain, data, method="fedavg", server=SGDSettings(1.0), local=local)
    protocol, module = found.state.protocol, net(dropout=False).double()
    for round in (1, 2):
        mean = sizes.NestedMean(module)
        for client in protocol.cohort(round):
            small = net(WIDTHS[protocol.architectures[client]], False).double()
            names = [name for name, _ in small.named_parameters()]
            places = [tuple(map(slice, parameter.shape)) for parameter in small.parameters()]
            part = mean.part(places)
            named = dict(zip(names, part, strict=True))
            outputs = functional_call(small, named, data[client].inputs.double())
            gradients = torch.autograd.grad(F.cross_entropy(outputs, data[client].targets), part)
            mean.add(places, [-0.3 * gradient for gradient in gradients], len(data[client]))
        mean.step()
    for name, value in found.state.tensors().items():
        torch.testing.assert_close(value, dict(module.named_parameters())[name].detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["fedavg", "partitioned"])
def test_one_architecture_is_none_to_the_bit(method):
    only = [{"share": 1.0, "model_options": {}}]
    assert_same(run(method=method, architectures=only), run(method=method, architectures=None))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "fedavg"},
        {"upload": "int8"},
        {"weighting": "uniform", "trim": 0.2},
        {"clip": ClipSettings(0.05, psi=0.1)},
        {"upload": "topk", "upload_options": {"share": 0.1}, "error_feedback": True, "download": "bf16"},
    ],
    ids=["partitioned", "fedavg", "codec", "trim", "clip", "error feedback"],
)
def test_workers_have_the_bits_of_one_process(changes):
    assert_workers_have_the_bits(run, **changes)


def test_a_run_that_is_resumed_has_the_bits_of_an_undisturbed_one(tmp_path):
    run(2, checkpoint=tmp_path / "run.pt")
    assert_same(run(4, checkpoint=tmp_path / "run.pt", resume=True), run(4))
    with pytest.raises(ValueError, match="belongs to another configuration: architectures was"):
        run(4, checkpoint=tmp_path / "run.pt", resume=True, architectures=ARCHITECTURES[::-1])
    with pytest.raises(ValueError, match=r"belongs to another configuration: .*architectures"):
        run(4, checkpoint=tmp_path / "run.pt", resume=True, architectures=None)


def test_uploads_downloads_and_the_expected_ratio_are_counted_by_cell():
    found = run(2)
    protocol = found.state.protocol
    header_up, header_down = 569, 710
    for report in found.metrics:
        up = down = 0
        for client in report.cohort:
            own = Protocol(Task(net(WIDTHS[protocol.architectures[client]])), settings(10, chunks=CHUNKS))
            space = own.partition.space.size
            psi = protocol.task.psi_space.size
            held = protocol.upload_sizes(client, protocol.plan(client, report.round))
            assert sum(protocol.partition_of(client).cell_sizes(1).values()) <= space
            up += 4 * sum(held.values()) + header_up
            down += 4 * (space + psi) + header_down
        assert (report.upload_bytes, report.download_bytes) == (up, down)
    sent = [protocol.upload_sizes(client, protocol.plan(client, 1)) for client in range(10)]
    mean = sum(size for sizes in sent for part, size in sizes.items() if part != PSI) / 10
    whole = protocol.partition.space.size
    assert expected_upload_ratio(protocol) == pytest.approx(mean / whole, rel=1e-12)


def test_each_chunk_has_the_architectures_in_their_shares():
    protocol = Protocol(task(), settings(100, chunks=(0.7, 0.2, 0.1), cohort=10, architectures=ARCHITECTURES))
    counts = {}
    for client in range(100):
        kind = protocol.chunk(client), protocol.architectures[client]
        counts[kind] = counts.get(kind, 0) + 1
    for k, n in ((1, 70), (2, 20), (3, 10)):
        assert all(abs(counts[k, a] - n * SHARES[a]) <= 1 for a in range(3))
    assert [sum(counts[k, a] for k in (1, 2, 3)) for a in range(3)] == [30, 30, 40]
    late = [protocol.architectures[100 + client] for client in range(10)]
    assert sorted(late) == [0] * 3 + [1] * 3 + [2] * 4


def test_what_one_network_has_alone_stays_where_nobody_trains_it():
    """Without a large client in the cohort what only it has is as it was, with its optimiser's state."""
    found = run(1, cohort=10).state
    large = [client for client in range(10) if found.protocol.architectures[client] == 0]
    others = [other.cell_sizes(1) for other in found.protocol.partitions[1:]]
    alone = set(found.partition.cell_sizes(1)).difference(*others)
    quiet = run(1, cohort=1, seed=3).state
    (client,) = quiet.protocol.cohort(1)
    assert (client in large) == all(quiet.optimiser.state_dict()[number - 1] for number in alone)
    start, cells = Federation(quiet.protocol).w, quiet.partition.cells
    for number in alone:
        own = slice(cells[number - 1], cells[number])
        assert torch.equal(quiet.w[own], start[own]) == (client not in large)


def test_what_one_client_alone_has_trained_is_what_it_has_made_of_it():
    """The server's plain step of 1 takes its value; so for each cell that the cohort's only client has."""
    data = shards(EXAMPLES)
    begun = Federation(run(0, data=data, cohort=1, server=SGDSettings(1.0)).state.protocol)
    (client,) = begun.protocol.cohort(1)
    jobs = begun.protocol.plan(client, 1)
    sums = Executor(begun.protocol).run(begun.start(1), client, data[client], jobs).cells
    stepped = run(1, data=data, cohort=1, server=SGDSettings(1.0)).state
    cells = begun.partition.cells
    assert sums
    for j, delta in sums.items():
        own = slice(cells[j - 1], cells[j])
        torch.testing.assert_close(stepped.w[own], begun.w[own] + delta, rtol=0, atol=1e-6)
    others = [slice(cells[j - 1], cells[j]) for j in range(1, len(cells)) if j not in sums]
    assert all(torch.equal(stepped.w[cell], begun.w[cell]) for cell in others)


def deep(layers=2):
    """One or two hidden layers."""
    torch.manual_seed(0)
    hidden = {"second": nn.Linear(10, 10), "tanh": nn.Tanh()} if layers == 2 else {}
    named = {"flat": nn.Flatten(), "first": nn.Linear(SIZE**2, 10), "drop": ConcreteDropout(0.2), **hidden}
    return nn.Sequential(OrderedDict(named | {"last": nn.Linear(10, CLASSES)}))


def test_some_clients_lack_a_layer():
    depths = [{"share": 0.5, "model_options": {"layers": layers}} for layers in (2, 1)]
    known = {"the_task": Task(deep(), samples=2, sizes=deep), "architectures": depths}
    found = run(3, **known)
    assert_same(found, run(3, workers=2, **known))
    whole, shallow = (found.state.of_architecture(index).module() for index in (0, 1))
    assert not hasattr(shallow, "second")
    assert not torch.equal(whole.second.weight, deep().second.weight)
    assert torch.equal(whole.first.weight, shallow.first.weight)
    numbers = sum(p.numel() for p in whole.parameters()) - sum(p.numel() for p in shallow.parameters())
    assert numbers == 10 * 10 + 10


def test_every_size_can_be_taken_out_and_scored():
    found = run(2)
    for index, width in enumerate(WIDTHS):
        state = found.state.of_architecture(index)
        module = state.module()
        shapes = {name: p.shape for name, p in module.named_parameters()}
        assert shapes == {name: p.shape for name, p in net(width).named_parameters()}
        scores = state.evaluate(shard(20, 5))
        outputs = torch.cat(list(state.predict(shard(20, 5).inputs)))
        right = (outputs.argmax(1) == shard(20, 5).targets).float().mean().item()
        assert scores["accuracy"] == pytest.approx(right)
    assert torch.equal(found.module()[1].weight[:3], found.state.of_architecture(2).module()[1].weight)


def test_privacy_counts_a_clients_cells():
    private = {"weighting": "uniform", "clip": ClipSettings(0.5, psi=0.5), "privacy": PrivacySettings(1.0)}
    kinds = None, ARCHITECTURES
    alone, several = (run(1, architectures=kind, **private).state.stage(Privacy) for kind in kinds)
    # the largest network has three cells in each of w_1..w_3; a client of chunk 1 sends them all
    assert several.deviations[1] / alone.deviations[1] == pytest.approx((9 / 3) ** 0.5)
    assert several.epsilon(5) == alone.epsilon(5)


def test_devices_of_different_sizes_and_speeds():
    """A small network's messages are smaller, and take less simulated time; buffered steps go by it."""
    slow = {"devices": DeviceSettings(speed=100.0, upload=1e3, download=1e3)}
    found = run(3, **slow, aggregation="buffered", buffer=3)
    assert found.metrics[-1].staleness > 0
    assert_same(found, run(3, **slow, aggregation="buffered", buffer=3, workers=2))
    turns = Turns(found.state, shards([6] * 10))
    seconds = [turns.seconds(found.state.start(4), client) for client in range(10)]
    protocol = found.state.protocol
    for chunk in (1, 2, 3):
        of_chunk = [client for client in range(10) if protocol.chunk(client) == chunk]
        by_size = sorted(of_chunk, key=lambda client: protocol.architectures[client])
        assert [seconds[client] for client in by_size] == sorted((seconds[c] for c in of_chunk), reverse=True)


def test_what_is_frozen_is_a_corner_of_the_tasks_own_too():
    """Whatever a build function draws for it: the small networks must fit into the one that is scored."""

    def body(width=1.0):
        units = round(10 * width)
        made = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, units), nn.Linear(units, 3))
        made[1].requires_grad_(False)
        made.register_buffer("constant", torch.rand(units))
        return made

    whole = Task(body(), samples=1, sizes=body)
    state = run(1, whole).state
    for index in range(3):
        small = state.of_architecture(index).module()
        length = len(small[1].weight)
        assert torch.equal(small[1].weight, whole.module[1].weight[:length])
        assert torch.equal(small.constant, whole.module.constant[:length])

    def other(width=1.0):
        found = body(width)
        return found if width == 1 else found.append(nn.Linear(3, 3).requires_grad_(False))

    with pytest.raises(ValueError, match=r"'3.weight', which is not trained, has the shape \[3, 3\]"):
        run(1, Task(body(), samples=1, sizes=other))


SIZES = (7, 12, 3, 9, 10, 6)
CAPS = {1: 2 / 3, 3: 1 / 3}  # of the two clients of chunk 2, one has the cap 1
NODE = {"scheme": "node", "defaults": "zeros"}


def protocol(**changes):
    task = Task(chain_net(dropout=False), transforms=[augmentation()], samples=2, precision="fp64")
    changes = {"chunks": (0.5, 0.3, 0.2), "local": LocalSettings(0.3), "evaluation": "clients", **changes}
    return Protocol(task, settings(len(SIZES), **changes))


def run_capped_runs(execution="loop", workers=1, **changes):
    """The state, and what its two rounds tell."""
    start = Federation(protocol(**changes))
    federation, reports = after(2, start, shards(SIZES), workers, execution, evaluate_every=1)
    names = ("train_loss", "lml", "upload_bytes", "examples", "client_nll", "client_nll_caps")
    told = [getattr(report, name) for report in reports for name in names]
    flat = [one for value in told for one in (value if isinstance(value, list) else [value])]
    return federation, [value for value in flat if value is not None]


def test_the_cap_c_for_all_is_none_to_the_bit():
    (one, told), (other, others) = (
        run_capped_runs(cohort=4),
        run_capped_runs(cohort=4, caps={3: 1.0}, caps_by="free"),
    )
    assert torch.equal(one.w, other.w) and torch.equal(one.psi, other.psi)
    assert told[:5] == others[:5]
    assert others[5] == told[4], "all have the cap 3"


@pytest.mark.parametrize(
    "execution, workers, changes",
    [("loop", 2, {}), ("vectorised", 1, NODE), ("fused", 1, NODE), ("vectorised", 1, {})],
)
def test_every_execution_computes_the_same(execution, workers, changes):
    (one, told), (other, others) = (
        run_capped_runs(caps=CAPS, **changes),
        run_capped_runs(execution, workers, caps=CAPS, **changes),
    )
    torch.testing.assert_close(one.w, other.w, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(one.psi, other.psi, rtol=1e-9, atol=1e-12)
    assert told == pytest.approx(others, rel=1e-9)
    start = Federation(one.protocol)
    moved = [not torch.equal(one.w[part], start.w[part]) for part in map(one.partition.slice, (1, 2, 3))]
    assert all(moved) and not torch.equal(one.psi, start.psi)


def test_a_client_computes_no_subnetwork_beyond_its_cap(monkeypatch):
    capped, computed = protocol(caps=CAPS, **NODE), []
    federation, executor, data = Federation(capped), Executor(capped), shards(SIZES)
    whole = Executor.subnetwork

    def watched(self, round, partition, k):
        computed.append(k)
        return whole(self, round, partition, k)

    monkeypatch.setattr(Executor, "subnetwork", watched)
    round = Round(1, federation.w, federation.psi)
    for client in range(len(SIZES)):
        jobs, cap = capped.plan(client, 1), capped.cap(client)
        update = executor.run(round, client, data[client], jobs)
        assert list(update.cells) == list(range(capped.chunk(client), cap + 1))
        assert (update.psi is not None) == (update.unseen_examples > 0) == (capped.chunk(client) > 1)
        assert max(computed) == max(cap if update.cells else 0, capped.chunk(client) - 1)
        computed.clear()
        evaluate(executor, round, client, data[client])
        assert computed == [cap]
        computed.clear()
