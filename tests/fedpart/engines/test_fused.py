"""Cohort fusion: the sum over a cohort as one gradient of its pooled data."""

import weakref

import pytest
import torch
from problems import Recorder, after, augmentation, chain_net, norm_net, settings, shard

from fedpart import AffineAugmentation, Dataset, Federation, LocalSettings, Protocol, Task
from fedpart.engines import fused as pooled
from fedpart.engines.executor import Executor

SIZES = [3, 7, 2, 9, 4, 6, 1, 5, 8, 3, 2, 6]


def task(network=chain_net, precision="fp64", samples=3, **options):
    return Task(network(), transforms=[augmentation()], samples=samples, precision=precision, **options)


def trained(execution, rounds=3, of=None, data=None, **changes):
    data = [shard(n, seed) for seed, n in enumerate(SIZES)] if data is None else data
    options = {"cohort": 8, "chunks": (0.5, 0.3, 0.2), "local": LocalSettings(learning_rate=0.3), **changes}
    federation = Federation(Protocol(of or task(), settings(len(data), **options)))
    return after(rounds, federation, data, execution=execution)


@pytest.mark.parametrize("network", [chain_net, norm_net])
@pytest.mark.parametrize("rows", [1, 40, 10_000])
def test_a_cohort_in_few_passes_is_the_cohort_client_by_client(network, rows, monkeypatch):
    monkeypatch.setitem(pooled.ROWS, "cpu", rows)
    (loop, one_by_one), (fused, together) = (trained(kind, of=task(network)) for kind in ("loop", "fused"))
    torch.testing.assert_close(fused.w, loop.w, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(fused.psi, loop.psi, rtol=1e-9, atol=1e-12)
    for a, b in zip(one_by_one, together, strict=True):
        assert a.train_loss == pytest.approx(b.train_loss, rel=1e-10)
        assert a.lml == (None if b.lml is None else pytest.approx(b.lml, rel=1e-10))
        assert (a.cohort, a.upload_bytes, a.download_bytes) == (b.cohort, b.upload_bytes, b.download_bytes)
        assert a.examples == b.examples and a.client_seconds > 0 and b.client_seconds > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fedavg"},
        {"method": "fedavg", "method_options": {"augment": True}},
        {"method": "augerino", "method_options": {"weight": 0.3}},
        {"local": LocalSettings(weight_decay=0.1, momentum=0.9)},
        {"local": LocalSettings(psi_batch=2)},
        {"scheme": "node", "defaults": "zeros"},
    ],
    ids=str,
)
def test_every_method_and_setting_that_takes_one_step(changes):
    net = chain_net(dropout=True)
    of = Task(net, transforms=[AffineAugmentation("lila", 0.2)], samples=2, precision="fp64")
    (loop, _), (fused, _) = (trained(kind, of=of, **changes) for kind in ("loop", "fused"))
    torch.testing.assert_close(fused.w, loop.w, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(fused.psi, loop.psi, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("share", [False, True])
def test_the_sum_of_each_partition_agrees_in_single_precision(share):
    totals = {}
    for kind in ("loop", "fused"):
        chosen = settings(len(SIZES), cohort=12, local=LocalSettings(learning_rate=0.3))
        federation = Recorder(Protocol(task(precision="fp32", share_dropout_mask=share), chosen))
        after(1, federation, [shard(n, i) for i, n in enumerate(SIZES)], execution=kind)
        (totals[kind],) = federation.totals
    loop, fused = totals["loop"], totals["fused"]
    assert loop["weights"] == fused["weights"] and loop["psi_weight"] == fused["psi_weight"]
    for j, delta in loop["deltas"].items():
        assert (fused["deltas"][j] - delta).abs().max() <= 3e-6 * delta.abs().max()
    assert (fused["psi"] - loop["psi"]).abs().max() <= 1e-5 * loop["psi"].abs().max()


def test_passes_come_in_few_shapes(monkeypatch):
    shapes, seen = [], pooled.gradients

    def recorded(task, *arguments):
        shapes.append(len(arguments[4].inputs) * task.samples)
        return seen(task, *arguments)

    monkeypatch.setattr(pooled, "gradients", recorded)
    trained("fused", of=task(samples=4), rounds=6)
    assert len(shapes) > 20 and all(rows % pooled.ROUND == 0 for rows in shapes)


def test_no_more_batches_are_held_than_a_pass_takes(monkeypatch):
    living, most, batches = weakref.WeakSet(), [], Executor.noisy

    def watched(*arguments):
        for batch, noise in batches(*arguments):
            living.add(noise)
            yield batch, noise
        most.append(len(living))

    monkeypatch.setattr(Executor, "noisy", watched)
    monkeypatch.setitem(pooled.ROWS, "cpu", 40)  # of S = 2: some clients of two examples
    of, kinds = task(samples=2), 5
    for clients in (100, 200):
        trained("fused", rounds=1, of=of, data=[shard(2, seed) for seed in range(clients)], cohort=clients)
        assert len(most) > clients and max(most) <= kinds * 10 + 1


def test_the_client_to_blame_is_skipped():
    data = [shard(n, seed) for seed, n in enumerate(SIZES)]
    data[4] = Dataset(data[4].inputs, torch.full_like(data[4].targets, 9))
    federation, reports = trained("fused", data=data, cohort=12, on_client_error="skip", rounds=1)
    loop, _ = trained("loop", data=data, cohort=12, on_client_error="skip", rounds=1)
    assert [skip["client"] for skip in reports[0].skipped] == [4]
    torch.testing.assert_close(federation.w, loop.w, rtol=1e-9, atol=1e-12)
