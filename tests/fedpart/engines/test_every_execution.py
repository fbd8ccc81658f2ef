"""Processes, messages and resumed runs have the same bits; clients computed together agree to rounding."""

import functools
import weakref

import pytest
import torch
from flower_experiment import CLIENTS, assert_equal_runs, build, deployed, local
from problems import (
    after,
    again,
    assert_near,
    assert_same,
    augmentation,
    chain_net,
    norm_net,
    settings,
    shards,
)

from fedpart import (
    AffineAugmentation,
    ClipSettings,
    Dataset,
    Federation,
    LocalSettings,
    PrivacySettings,
    Protocol,
    SGDSettings,
    Task,
)
from fedpart.engines import fused as pooled
from fedpart.engines.executor import Executor
from fedpart.updates.codecs import CODECS

ROUNDS = 3
CLIP, USUAL = ClipSettings((0.03, 0.02, 0.01), psi=0.005), ClipSettings(multiple=1.0)
EVEN = {"weighting": "uniform"}
PRIVACY = {**EVEN, "clip": CLIP, "privacy": PrivacySettings(1.0, randomness="seed")}
FED_BACK = {"upload": "topk", "share": 0.1, "error_feedback": True}
SAFE = {
    "clip": {"clip": CLIP},
    "trim": {"defence": "trim", **EVEN},
    "median": {"defence": "median", "clip": CLIP, **EVEN},
    "geometric": {"defence": "geometric", **EVEN},
    "krum": {"defence": "krum", **EVEN},
    "centred": {"defence": "centred", "bucket": 2, **EVEN},
    "privacy": PRIVACY,
    "usual norms": {"clip": USUAL},  # half of all updates are longer
}
RUNS = SAFE | {
    "augerino": {"method": "augerino"},
    "fedex": {"method": "fedex"},
    "quantile": PRIVACY | {"clip": ClipSettings(1e-3, 1e-3, quantile=0.5)},
    **{f"usual norms, {n}": {"clip": USUAL, n: True} for n in ("sizes", "capped")},
    "usual norms, trim": {"clip": USUAL, "defence": "trim", **EVEN},
    "usual norms, int8": {"clip": USUAL, "upload": "int8"},
    "usual norms, fedex": {"clip": USUAL, "method": "fedex"},
    "usual norms, buffered": {"clip": USUAL, "pace": "buffered"},
    **{name: {"upload": name} for name in CODECS},
    "int4, trim": {"upload": "int4", "clip": CLIP, "defence": "trim", **EVEN},
    "int8, privacy": {"upload": "int8", **PRIVACY},
    "int8, fedex": {"upload": "int8", "method": "fedex"},
    "download": {"download": "fp16"},
    "both ways": {"download": "bf16", "upload": "int8", "evaluation": "clients", "evaluation_share": 0.3},
    "error feedback": FED_BACK,
    "sizes": {"sizes": True},
    "sizes, fedavg": {"sizes": True, "method": "fedavg"},
    "sizes, int8": {"sizes": True, "upload": "int8"},
    "sizes, trim": {"sizes": True, "defence": "trim", **EVEN},
    "sizes, clip": {"sizes": True, "clip": ClipSettings(0.05, psi=0.1)},
    "sizes, feedback": {"sizes": True, "download": "bf16", **FED_BACK},
    "bank": {"sizes": True, "sharing": "bank"},
    "bank, feedback": {"sizes": True, "sharing": "bank", "download": "bf16", **FED_BACK},
    "bank, fedex": {"sizes": True, "sharing": "bank", "method": "fedex"},
    "basis, fedavg": {"sizes": True, "sharing": "basis", "method": "fedavg"},
    "basis, clip": {"sizes": True, "sharing": "basis", "clip": ClipSettings((0.01, 0.1, 0.2), psi=0.1)},
}
FAST = {"quantile", "int8", "both ways", "sizes, feedback"}
BASE = ("method", "weighting", "sizes", "sharing", "pace", "capped", "evaluation", "evaluation_share")


@functools.cache
def weights_of(*items):
    """Those that training with these settings, and no other, ends with."""
    return local(ROUNDS, **dict(items))[0].w


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in RUNS])
def test_processes_messages_and_resumed_runs_have_the_same_bits(name, tmp_path):
    config = RUNS[name]
    expected, in_workers = local(ROUNDS, every=2, **config), local(ROUNDS, 2, every=2, **config)
    assert_equal_runs(in_workers, expected)
    stages = [stage.state_dict() for stage in expected[0].stages]
    for mine, theirs in zip(in_workers[1], expected[1], strict=True):
        for key in ("upload_bytes", "download_bytes", "evaluation_bytes", "clipped"):
            assert getattr(mine, key) == getattr(theirs, key)
    if "error_feedback" not in config:  # it needs a folder: see test_codec_runs.py
        assert str([stage.state_dict() for stage in in_workers[0].stages]) == str(stages)
        resumed = again(local(2, **config)[0], tmp_path / "run.pt")
        assert_same(after(ROUNDS, resumed, build(config).shards)[0], expected[0])
    if "pace" not in config:  # see test_slow_nodes.py
        over_flower = deployed(ROUNDS, {**config, "residuals": str(tmp_path)}, every=2)
        assert_equal_runs(over_flower, expected)
        for mine, theirs in zip(over_flower[1], expected[1], strict=True):
            for key in ("upload_bytes", "download_bytes", "evaluation_bytes"):  # but for headers
                assert getattr(mine, key) == pytest.approx(getattr(theirs, key), abs=200 * CLIENTS)
    plain = [(key, value) for key, value in config.items() if key in BASE]
    if dict(plain) != config:
        assert not torch.equal(weights_of(*sorted(plain)), expected[0].w)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", SAFE)
def test_clients_computed_together_are_safeguarded_alike(name):
    runs = (local(ROUNDS, execution=kind, **SAFE[name])[0] for kind in ("loop", "grouped"))
    assert_near(*runs, rtol=1e-3, atol=1e-4 if name == "usual norms" else 1e-5)


SIZES = [3, 7, 2, 9, 4, 6, 1, 5, 8, 3, 2, 6]


def task(network=chain_net, precision="fp64", samples=3, **options):
    return Task(network(), transforms=[augmentation()], samples=samples, precision=precision, **options)


def trained(execution, rounds=3, of=None, data=None, **changes):
    data = data or shards(SIZES)
    options = {"cohort": 8, "chunks": (0.5, 0.3, 0.2), "local": LocalSettings(learning_rate=0.3), **changes}
    federation = Federation(Protocol(of or task(), settings(len(data), **options)))
    return after(rounds, federation, data, execution=execution)


@pytest.mark.quick(2)
@pytest.mark.parametrize("network", [chain_net, norm_net])
@pytest.mark.parametrize("rows", [1, 40, 10_000])
def test_a_fused_cohort_in_few_passes_is_the_cohort_client_by_client(network, rows, monkeypatch):
    monkeypatch.setitem(pooled.ROWS, "cpu", rows)
    (loop, one_by_one), (fused, together) = (trained(kind, of=task(network)) for kind in ("loop", "fused"))
    assert_near(fused, loop)
    for a, b in zip(one_by_one, together, strict=True):
        assert a.train_loss == pytest.approx(b.train_loss, rel=1e-10)
        assert a.lml == (None if b.lml is None else pytest.approx(b.lml, rel=1e-10))
        assert (a.cohort, a.upload_bytes, a.download_bytes) == (b.cohort, b.upload_bytes, b.download_bytes)
        assert a.examples == b.examples and a.client_seconds > 0 and b.client_seconds > 0


SUMS = {"server": SGDSettings(1.0), "server_psi": SGDSettings(1.0)}


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "of_task, changes",
    [
        ({}, {"method": "fedavg"}),
        ({}, {"method": "fedavg", "method_options": {"augment": True}}),
        ({}, {"method": "augerino", "method_options": {"weight": 0.3}}),
        ({}, {"local": LocalSettings(weight_decay=0.1, momentum=0.9)}),
        ({}, {"local": LocalSettings(psi_batch=2)}),
        ({}, {"scheme": "node", "defaults": "zeros"}),
        ({}, {"scheme": "node", "defaults": "zeros", "caps": {1: 0.6, 3: 0.4}}),
        ({"share_dropout_mask": True}, {}),
        ({"stratified": True}, {"method": "augerino"}),
        ({"precision": "fp32"}, SUMS),
        ({"precision": "fp32", "share_dropout_mask": True}, SUMS),
    ],
    ids=str,
)
def test_every_method_and_setting_that_takes_one_step_can_be_fused(of_task, changes):
    of = Task(
        chain_net(),
        transforms=[AffineAugmentation("lila", 0.2)],
        **{"samples": 2, "precision": "fp64", **of_task},
    )
    loop, fused = (trained(kind, of=of, **changes)[0] for kind in ("loop", "fused"))
    assert_near(fused, loop, **({"rtol": 1e-5, "atol": 1e-6} if changes is SUMS else {}))


def test_fused_passes_come_in_few_shapes(monkeypatch):
    shapes, seen = [], pooled.gradients

    def recorded(task, *arguments):
        shapes.append(len(arguments[4].inputs) * task.samples)
        return seen(task, *arguments)

    monkeypatch.setattr(pooled, "gradients", recorded)
    trained("fused", of=task(samples=4), rounds=6)
    assert len(shapes) > 20 and all(rows % pooled.ROUND == 0 for rows in shapes)


@pytest.mark.slow
def test_no_more_batches_are_held_than_a_fused_pass_takes(monkeypatch):
    living, most, batches = weakref.WeakSet(), [], Executor.noisy

    def watched(*arguments):
        for batch, noise in batches(*arguments):
            living.add(noise)
            yield batch, noise
        most.append(len(living))

    monkeypatch.setattr(Executor, "noisy", watched)
    monkeypatch.setitem(pooled.ROWS, "cpu", 40)  # of S = 2: some clients of two examples
    kinds = 5
    for clients in (100, 200):
        trained("fused", rounds=1, of=task(samples=2), data=shards([2] * clients), cohort=clients)
        assert len(most) > clients and max(most) <= kinds * 10 + 1


def test_the_client_to_blame_is_skipped_of_a_fused_cohort():
    data = shards(SIZES)
    data[4] = Dataset(data[4].inputs, torch.full_like(data[4].targets, 9))
    (fused, reports), (loop, _) = (
        trained(kind, 1, data=data, cohort=12, on_client_error="skip") for kind in ("fused", "loop")
    )
    assert [skip["client"] for skip in reports[0].skipped] == [4]
    assert_near(fused, loop)
