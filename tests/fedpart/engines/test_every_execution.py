"""Processes, messages, resumed runs have the same bits; clients computed together agree; what auto takes."""

import functools
import re
import weakref

import pytest
import torch
from flower_experiment import CLIENTS, assert_equal_runs, build, deployed, local
from problems import (
    CLASSES,
    SIZE,
    Branching,
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
from torch import nn

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
from fedpart.engines import LocalEngine, automatic
from fedpart.engines import fused as pooled
from fedpart.engines.executor import Executor
from fedpart.engines.local import Loop
from fedpart.updates.combining import COMBINATIONS
from fedpart.updates.stages import Kept
from fedpart.updates.stages.robust import RobustSum

ROUNDS = 3
CLIP, USUAL = ClipSettings((0.03, 0.02, 0.01), psi=0.005), ClipSettings(multiple=1.0)
OF_PARTITIONS = ClipSettings((0.01, 0.1, 0.2), psi=0.1)
EVEN = {"weighting": "uniform"}
PRIVACY = {**EVEN, "clip": CLIP, "privacy": PrivacySettings(1.0, randomness="seed")}
FED_BACK = {"upload": "topk", "share": 0.1, "error_feedback": True}
CENTRED = {"defence": "centred", "bucket": 2, **EVEN}
SAFE = {"privacy": PRIVACY, "centred": {**CENTRED, "clip": CLIP}, "usual norms": {"clip": USUAL}}
SCORED = {"evaluation": "clients", "evaluation_share": 0.3}
RUNS = {
    "quantile": PRIVACY | {"clip": ClipSettings(1e-3, 1e-3, quantile=0.5)},
    "both ways": {"download": "bf16", "upload": "int8", **SCORED},
    "sizes, feedback": {"sizes": True, "download": "bf16", **FED_BACK},
    "fedrep": {"method": "fedrep+yogi", "download": "bf16", **SCORED},
    "trim": {"defence": "trim", "upload": "int4", "clip": CLIP, **EVEN},
    "median": {"defence": "median", "sizes": True, "clip": ClipSettings(0.05, psi=0.1), **EVEN},
    "centred": CENTRED,
    "privacy": {"upload": "int8", **PRIVACY},
    # of usual norms half of all updates are longer
    "usual norms": {"clip": USUAL, "sizes": True, "upload": "int8"},
    "usual norms, capped": {"clip": USUAL, "capped": True, "defence": "krum", "upload": "fp16", **EVEN},
    "usual norms, fedex": {"clip": USUAL, "method": "fedex", "upload": "int8"},
    "usual norms, buffered": {"clip": USUAL, "pace": "buffered", "upload": "bf16"},
    "augerino": {"method": "augerino", "upload": "topk", "download": "fp16"},
    "bank": {"sizes": True, "sharing": "bank", "download": "bf16", **FED_BACK},
    "bank, fedex": {"sizes": True, "sharing": "bank", "method": "fedex"},
    "basis": {"sizes": True, "sharing": "basis", "clip": OF_PARTITIONS, "defence": "geometric", **EVEN},
    "scaffold": {"method": "partitioned+scaffold", **FED_BACK},
    "scaffold, sizes": {"method": "scaffold", "sizes": True, "upload": "int8", "download": "bf16"},
    "feddyn": {"method": "feddyn"},
    "fednova": {"method": "partitioned+fednova", "clip": USUAL},
    "fedprox": {"method": "augerino+fedprox+yogi", "defence": "trim", **EVEN},
    "ditto": {"method": "partitioned+ditto", "sizes": True, **SCORED},
    "ditto, feedback": {"method": "ditto", **FED_BACK, **SCORED},
}
BASE = ("method", "weighting", "sizes", "sharing", "pace", "capped", *SCORED)


@functools.cache
def plainly(*items):
    """What training with these settings, and no other, ends with: weights, and scores of the clients."""
    federation, reports = local(ROUNDS, **dict(items))
    return federation.w.tolist(), reports[-1].client_nll


def without_what_is_composed(config):
    ways = [way for way in config.get("method", "partitioned").split("+") if way not in COMBINATIONS.names()]
    return {key: config[key] for key in BASE if key in config} | {"method": "+".join(ways) or "fedavg"}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_processes_messages_and_resumed_runs_have_the_same_bits(name, tmp_path, monkeypatch):
    config = RUNS[name]
    expected, in_workers = local(ROUNDS, every=2, **config), local(ROUNDS, 2, every=2, **config)
    assert_equal_runs(in_workers, expected)
    stages = [stage.state_dict() for stage in expected[0].stages]
    for mine, theirs in zip(in_workers[1], expected[1], strict=True):
        for key in ("upload_bytes", "download_bytes", "evaluation_bytes", "clipped"):
            assert getattr(mine, key) == getattr(theirs, key)
    if not expected[0].stage(Kept):  # what clients keep needs a folder: see training/test_checkpoint.py
        assert str([stage.state_dict() for stage in in_workers[0].stages]) == str(stages)
        resumed = again(local(2, **config)[0], tmp_path / "run.pt")
        assert_same(after(ROUNDS, resumed, build(config).shards)[0], expected[0])
    if "pace" not in config:  # see test_slow_nodes.py
        over_flower = deployed(ROUNDS, {**config, "residuals": str(tmp_path)}, every=2)
        assert_equal_runs(over_flower, expected)
        for mine, theirs in zip(over_flower[1], expected[1], strict=True):
            for key in ("upload_bytes", "download_bytes", "evaluation_bytes"):  # but for headers
                assert getattr(mine, key) == pytest.approx(getattr(theirs, key), abs=200 * CLIENTS)
    plain, found = without_what_is_composed(config), (expected[0].w.tolist(), expected[1][-1].client_nll)
    others = [plain] if plain != {"method": "partitioned", **config} else []
    for of_one in ({"download"}, {"upload", "share", "error_feedback"}):  # each does something by itself
        if of_one & config.keys():
            others.append({key: config[key] for key in config.keys() - of_one})
    for other in others:
        assert found != plainly(*sorted(other.items()))
    if "defence" in config:
        monkeypatch.setattr(RobustSum, "start", lambda _, round: round)
        assert found[0] != local(ROUNDS, **config)[0].w.tolist()


@pytest.mark.quick(1)
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


@pytest.mark.quick(1)
@pytest.mark.parametrize("network, rows", [(norm_net, 1), (chain_net, 40), (norm_net, 10_000)])
def test_a_fused_cohort_in_few_passes_is_the_cohort_client_by_client(network, rows, monkeypatch):
    shapes, seen = [], pooled.gradients

    def recorded(task, *arguments):
        shapes.append(len(arguments[4].inputs) * task.samples)
        return seen(task, *arguments)

    monkeypatch.setattr(pooled, "gradients", recorded)
    monkeypatch.setitem(pooled.ROWS, "cpu", rows)
    of = task(network, samples=4)
    (loop, one_by_one), (fused, together) = (trained(kind, of=of) for kind in ("loop", "fused"))
    assert len(shapes) > 9 and all(rows % pooled.ROUND == 0 for rows in shapes), "passes come in few shapes"
    assert_near(fused, loop)
    for a, b in zip(one_by_one, together, strict=True):
        assert a.train_loss == pytest.approx(b.train_loss, rel=1e-10)
        assert a.lml == (None if b.lml is None else pytest.approx(b.lml, rel=1e-10))
        assert (a.cohort, a.upload_bytes, a.download_bytes) == (b.cohort, b.upload_bytes, b.download_bytes)
        assert a.examples == b.examples and a.client_seconds > 0 and b.client_seconds > 0


SUMS = {"server": SGDSettings(1.0), "server_psi": SGDSettings(1.0)}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "of_task, changes",
    [
        ({}, {"method": "fedavg"}),
        ({"share_dropout_mask": True}, {"method": "fedavg", "method_options": {"augment": True}}),
        ({"stratified": True}, {"method": "augerino", "method_options": {"weight": 0.3}}),
        ({}, {"local": LocalSettings(weight_decay=0.1, momentum=0.9, psi_batch=2)}),
        ({}, {"scheme": "node", "defaults": "zeros", "caps": {1: 0.6, 3: 0.4}}),
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
    trained("fused", rounds=1, of=task(samples=2), data=shards([2] * 100), cohort=100)
    assert len(most) > 100 and max(most) <= kinds * 10 + 1


def test_the_client_to_blame_is_skipped_of_a_fused_cohort():
    data = shards(SIZES)
    data[4] = Dataset(data[4].inputs, torch.full_like(data[4].targets, 9))
    (fused, reports), (loop, _) = (
        trained(kind, 1, data=data, cohort=12, on_client_error="skip") for kind in ("fused", "loop")
    )
    assert [skip["client"] for skip in reports[0].skipped] == [4]
    assert_near(fused, loop)


FEW = (7, 12, 3, 9)
SEVERAL = {"local": LocalSettings(batch_size=4)}


class Last(nn.Module):
    def forward(self, given):
        return given[0]


def recurrent():
    return nn.Sequential(nn.Flatten(1), nn.LSTM(SIZE**2, CLASSES), Last())


def protocol_of(network, **changes):
    return Protocol(Task(network, samples=1), settings(len(FEW), cohort=3, **changes))


def engine_of(*given, **changes):
    return LocalEngine(Federation(protocol_of(*given, **changes)), shards(FEW))


def test_on_a_cpu_it_is_loop_and_elsewhere_a_way_that_refuses_is_followed_by_the_next(monkeypatch):
    engine = engine_of(chain_net())
    assert isinstance(engine.clients, Loop) and engine.remark == ""
    expected, _ = after(2, Federation(protocol_of(Branching(), **SEVERAL)), shards(FEW))
    monkeypatch.setattr(automatic, "ALONE", ())
    with pytest.warns(RuntimeWarning, match="loop; not fused: .* not grouped: Round 1: These clients"):
        state, _ = after(2, Federation(protocol_of(Branching(), **SEVERAL)), shards(FEW), execution="auto")
    assert_near(state, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "network, changes, remark",
    [
        (chain_net, {}, "fused."),
        (chain_net, SEVERAL, "grouped; not fused: Client 0 takes 2 steps with its 7 examples, but fused"),
        (recurrent, SEVERAL, "loop; not fused: .*; not grouped: The recurrent layer"),
    ],
    ids=["one step", "several steps", "recurrent"],
)
def test_elsewhere_the_first_way_that_takes_the_run_computes_it(monkeypatch, network, changes, remark):
    monkeypatch.setattr(automatic, "ALONE", ())
    found = engine_of(network(), **changes).remark
    assert re.match(f"Clients are computed by execution: {remark}", found), found
