"""Runs with caps: in every execution the same, nothing beyond a cap is computed, and none is the largest."""

import pytest
import torch
from problems import after, augmentation, chain_net, settings, shards

from fedpart import Federation, LocalSettings, Protocol, Task
from fedpart.engines.evaluation import evaluate
from fedpart.engines.executor import Executor
from fedpart.updates.update import Round

SIZES = (7, 12, 3, 9, 10, 6)
CAPS = {1: 2 / 3, 3: 1 / 3}  # of the two clients of chunk 2, one has the cap 1
NODE = {"scheme": "node", "defaults": "zeros"}


def protocol(**changes):
    task = Task(chain_net(dropout=False), transforms=[augmentation()], samples=2, precision="fp64")
    changes = {"chunks": (0.5, 0.3, 0.2), "local": LocalSettings(0.3), "evaluation": "clients", **changes}
    return Protocol(task, settings(len(SIZES), **changes))


def run(execution="loop", workers=1, **changes):
    """The state, and what its two rounds tell."""
    start = Federation(protocol(**changes))
    federation, reports = after(2, start, shards(SIZES), workers, execution, evaluate_every=1)
    names = ("train_loss", "lml", "upload_bytes", "examples", "client_nll", "client_nll_caps")
    told = [getattr(report, name) for report in reports for name in names]
    flat = [one for value in told for one in (value if isinstance(value, list) else [value])]
    return federation, [value for value in flat if value is not None]


def test_the_cap_c_for_all_is_none_to_the_bit():
    (one, told), (other, others) = run(cohort=4), run(cohort=4, caps={3: 1.0}, caps_by="free")
    assert torch.equal(one.w, other.w) and torch.equal(one.psi, other.psi)
    assert told[:5] == others[:5]
    assert others[5] == told[4], "all have the cap 3"


@pytest.mark.parametrize(
    "execution, workers, changes",
    [("loop", 2, {}), ("vectorised", 1, NODE), ("fused", 1, NODE), ("vectorised", 1, {})],
)
def test_every_execution_computes_the_same(execution, workers, changes):
    (one, told), (other, others) = run(caps=CAPS, **changes), run(execution, workers, caps=CAPS, **changes)
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
        assert list(update.deltas) == list(range(capped.chunk(client), cap + 1))
        assert (update.psi is not None) == (update.unseen_examples > 0) == (capped.chunk(client) > 1)
        assert max(computed) == max(cap if update.deltas else 0, capped.chunk(client) - 1)
        computed.clear()
        evaluate(executor, round, client, data[client])
        assert computed == [cap]
        computed.clear()
