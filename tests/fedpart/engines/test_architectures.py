"""Clients with networks of different sizes train one set of numbers, each uploading its part."""

from collections import Counter, OrderedDict
from functools import partial
from itertools import pairwise

import pytest
import refusals
import torch
from problems import CLASSES, SIZE, after, assert_same, augmentation, chain_net, settings, shard, shards
from sizes import ARCHITECTURES, CHUNKS, EXAMPLES, SHARES, WIDTHS, net, run, task
from torch import nn

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
from fedpart.updates.stages import Privacy
from fedpart.updates.update import Round


def test_one_architecture_is_none_to_the_bit():
    only = [{"share": 1.0, "model_options": {}}]
    assert_same(run(2, architectures=only), run(2, architectures=None))


def test_checkpoints_of_other_sizes_are_refused(tmp_path):
    run(1, checkpoint=tmp_path / "run.pt")
    changes = {"architectures": ARCHITECTURES[::-1]}, {"architectures": None}, {"sharing": {"kind": "bank"}}
    refusals.check_keywords(
        partial(run, 2, checkpoint=tmp_path / "run.pt", resume=True),
        [(change, f"belongs to another configuration: .*{next(iter(change))}") for change in changes],
    )


def test_uploads_and_downloads_are_counted_by_cell():
    result = run(2)
    protocol = result.state.protocol
    psi, header_up, header_down = protocol.task.psi_space.size, 569, 710
    for report in result.metrics:
        up = down = 0
        for client in report.cohort:
            alone = Task(net(WIDTHS[protocol.architectures[client]])).parameter_space(3).size
            sizes = protocol.upload_sizes(client, protocol.plan(client, report.round))
            up += 4 * sum(sizes.values()) + header_up
            down += 4 * (alone + psi) + header_down
        assert (report.upload_bytes, report.download_bytes) == (up, down)


def test_each_chunk_has_the_architectures_in_their_shares():
    protocol = Protocol(task(), settings(100, chunks=(0.7, 0.2, 0.1), cohort=10, architectures=ARCHITECTURES))
    counts = Counter((protocol.chunk(client), protocol.architectures[client]) for client in range(100))
    for k, n in ((1, 70), (2, 20), (3, 10)):
        assert all(abs(counts[k, a] - n * SHARES[a]) <= 1 for a in range(3))
    assert [sum(counts[k, a] for k in (1, 2, 3)) for a in range(3)] == [30, 30, 40]
    late = [protocol.architectures[100 + client] for client in range(10)]
    assert sorted(late) == [0] * 3 + [1] * 3 + [2] * 4


def test_a_cohort_of_one_client_changes_what_it_has_and_nothing_else():
    """The server's plain step of 1 takes the client's values; the others stay, as does their momentum."""
    plain = {"cohort": 1, "server": SGDSettings(1.0, momentum=0.5)}
    before, after = (run(rounds, **plain).state for rounds in (0, 1))
    (client,) = before.protocol.cohort(1)
    jobs = before.protocol.plan(client, 1)
    deltas = Executor(before.protocol).run(before.start(1), client, shards(EXAMPLES)[client], jobs).cells
    cells = before.partition.cells
    assert 0 < len(deltas) < len(cells) - 1
    for j, (start, end) in enumerate(pairwise(cells), start=1):
        if j in deltas:
            expected = before.w[start:end] + deltas[j]
            torch.testing.assert_close(after.w[start:end], expected, rtol=0, atol=1e-6)
        else:
            assert torch.equal(after.w[start:end], before.w[start:end])
    assert [j for j, state in enumerate(after.optimiser.state_dict(), start=1) if state] == sorted(deltas)


def deep(layers=2):
    """One or two hidden layers."""
    torch.manual_seed(0)
    hidden = {"second": nn.Linear(10, 10), "tanh": nn.Tanh()} if layers == 2 else {}
    named = {"flat": nn.Flatten(), "first": nn.Linear(SIZE**2, 10), "drop": ConcreteDropout(0.2), **hidden}
    return nn.Sequential(OrderedDict(named | {"last": nn.Linear(10, CLASSES)}))


def test_some_clients_lack_a_layer():
    depths = [{"share": 0.5, "model_options": {"layers": layers}} for layers in (2, 1)]
    result = run(3, Task(deep(), samples=2, sizes=deep), architectures=depths)
    whole, shallow = (result.state.of_architecture(index).module() for index in (0, 1))
    assert not hasattr(shallow, "second")
    assert not torch.equal(whole.second.weight, deep().second.weight)
    assert torch.equal(whole.first.weight, shallow.first.weight)
    numbers = sum(p.numel() for p in whole.parameters()) - sum(p.numel() for p in shallow.parameters())
    assert numbers == 10 * 10 + 10


def test_every_size_can_be_taken_out_and_scored():
    found = run(2)
    for index, width in enumerate(WIDTHS):
        state = found.state.of_architecture(index)
        shapes = [{n: p.shape for n, p in of.named_parameters()} for of in (state.module(), net(width))]
        assert shapes[0] == shapes[1]
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
    found = run(3, **slow, buffer=3)
    assert found.metrics[-1].staleness > 0
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


def capped(**changes):
    net = Task(chain_net(dropout=False), transforms=[augmentation()], samples=2, precision="fp64")
    changes = {"chunks": CHUNKS, "local": LocalSettings(0.3), "evaluation": "clients", **changes}
    return Protocol(net, settings(len(SIZES), **changes))


def test_the_cap_c_for_all_is_none_to_the_bit():
    caps = {}, {"caps": {3: 1.0}, "caps_by": "free"}
    runs = (after(2, Federation(capped(cohort=4, **c)), shards(SIZES), evaluate_every=1) for c in caps)
    (plain, reports), (other, others) = runs
    assert_same(plain, other)
    for name in ("train_loss", "lml", "upload_bytes", "examples", "client_nll"):
        assert [getattr(report, name) for report in reports] == [getattr(report, name) for report in others]
    assert others[0].client_nll_caps[2] == others[0].client_nll


def test_a_client_computes_no_subnetwork_beyond_its_cap(monkeypatch):
    protocol, computed = capped(caps={1: 2 / 3, 3: 1 / 3}, scheme="node", defaults="zeros"), []
    federation, executor, data = Federation(protocol), Executor(protocol), shards(SIZES)
    whole = Executor.point

    def watched(self, round, partition, k):
        computed.append(k)
        return whole(self, round, partition, k)

    monkeypatch.setattr(Executor, "point", watched)
    round = Round(1, federation.w, federation.psi)
    for client in range(len(SIZES)):
        chunk, cap = protocol.chunk(client), protocol.cap(client)
        update = executor.run(round, client, data[client], protocol.plan(client, 1))
        assert list(update.cells) == list(range(chunk, cap + 1))
        assert (update.psi is not None) == (update.unseen_examples > 0) == (chunk > 1)
        assert max(computed) == max(cap if update.cells else 0, chunk - 1)
        computed.clear()
        evaluate(executor, round, client, data[client])
        assert computed == [cap]
        computed.clear()
