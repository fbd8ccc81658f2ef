"""Ways to combine clients, with methods, on engines, over stops, and what they refuse."""

import pytest
import torch
from flower_experiment import build, deployed, local
from problems import (
    AtRound,
    after,
    again,
    assert_near,
    assert_same,
    augmentation,
    chain_net,
    settings,
    shards,
)

from fedpart import ClipSettings, Federation, LocalSettings, Protocol, SGDSettings, Task, federate
from fedpart.engines.executor import Executor
from fedpart.federated.report import unsteady
from fedpart.methods.base import build_method
from fedpart.updates.combining import COMBINATIONS
from fedpart.updates.stages import Combining, Kept

SIZES = [3, 7, 2, 9, 4, 6, 5, 8]
EVERY = ["scaffold", "fedprox", "fednova", "feddyn", "yogi", "adagrad", "fedavgm"]


def made(method, epochs=2, batch=3, options=None, **changes):
    task = Task(chain_net(), transforms=[augmentation()], samples=2, precision="fp64")
    how = LocalSettings(learning_rate=0.3, batch_size=batch, epochs=epochs)
    known = {"cohort": 5, "chunks": (0.5, 0.3, 0.2), "local": how, "method_options": options or {}}
    return Federation(Protocol(task, settings(8, method=method, **{**known, **changes})))


def test_all_are_known():
    assert sorted([*EVERY, "ditto", "fedbn", "fedrep"]) == COMBINATIONS.names()


LATER = [pytest.param(way, marks=pytest.mark.slow) for way in EVERY if way != "fedprox"]


@pytest.mark.parametrize("way", ["fedprox", *LATER])
def test_with_partitioned_training_clients_computed_together_agree(way):
    loop, grouped = (
        after(3, made(f"partitioned+{way}"), shards(SIZES), execution=kind)[0] for kind in ("loop", "grouped")
    )
    assert_near(grouped, loop)
    assert not torch.equal(loop.w, after(3, made("partitioned"), shards(SIZES))[0].w)


def test_fedprox_pulls_each_partition():
    """Two full steps: with the pull the second adds -rate * mu * (the first's change)."""
    changes = {}
    for name, epochs in (("partitioned", 1), ("partitioned", 2), ("partitioned+fedprox", 2)):
        federation = made(name, epochs, 64, {"mu": 0.9} if "+" in name else None)
        protocol = federation.protocol
        client = next(client for client in range(8) if protocol.chunk(client) == 1)
        executor = AtRound(Executor(protocol), 1, federation.w, federation.psi)
        update = executor.run(client, shards(SIZES)[client], protocol.plan(client, 1))
        changes[name, epochs] = update.cells
    plain, pulled = changes["partitioned", 2], changes["partitioned+fedprox", 2]
    assert plain.keys() == {1, 2, 3}
    for j, first in changes["partitioned", 1].items():
        torch.testing.assert_close(pulled[j], plain[j] - 0.3 * 0.9 * first, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", ["fedprox", "fednova"])
def test_where_each_client_takes_one_step_both_are_the_mean_fused_or_not(way):
    one = {"epochs": 1, "batch": 64}
    plain = after(3, made("partitioned", **one), shards(SIZES))[0]
    for execution in ("fused", "loop"):
        assert_near(after(3, made(f"partitioned+{way}", **one), shards(SIZES), execution=execution)[0], plain)


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", ["scaffold", "feddyn"])
def test_what_clients_keep_adds_up_to_what_the_server_has(way):
    """The mean of the variates of the clients that train a partition, by their examples."""
    federation = after(6, made(f"partitioned+{way}", cohort=8), shards(SIZES))[0]
    protocol, kept = federation.protocol, federation.stage(Kept).residuals
    means = federation.stage(Combining).means()
    for j in (1, 2, 3):
        clients = [client for client in range(8) if protocol.chunk(client) <= j]
        own = sum(SIZES[client] * kept.read(client)[-j] for client in clients)
        own = own / sum(SIZES[client] for client in clients)
        torch.testing.assert_close(means[protocol.partition.slice(j)], own, rtol=1e-9, atol=1e-12)
        assert own.abs().max() > 1e-4


def test_scaffold_sends_the_mean_down_and_nothing_more_up():
    """Up: the server finds what a client adds to its own variate in its change."""
    (_, plain), (_, scaffold) = (after(1, made(name), shards(SIZES)) for name in ("fedavg", "scaffold"))
    task = made("fedavg").protocol.task
    assert plain[0].upload_bytes == scaffold[0].upload_bytes
    more = 5 * task.counts["trained"] * task.dtype.itemsize
    assert scaffold[0].download_bytes - plain[0].download_bytes == more


FED_BACK = {"upload": "topk", "share": 0.1, "error_feedback": True}
RUNS = [
    {"method": "partitioned+scaffold"},
    {"method": "feddyn"},
    {"method": "partitioned+fednova", "clip": ClipSettings(multiple=1.0)},
    {"method": "augerino+fedprox+yogi"},
    {"method": "partitioned+scaffold", **FED_BACK},
    {"method": "partitioned+scaffold", "sizes": True, "upload": "int8"},
    {"method": "scaffold", "sizes": True, "download": "bf16"},
    {"method": "partitioned+fedprox", "defence": "trim", "weighting": "uniform"},
]
PARAMETERS = [RUNS[0], *(pytest.param(run, marks=pytest.mark.slow) for run in RUNS[1:])]


@pytest.mark.slow
@pytest.mark.parametrize("config", PARAMETERS, ids=str)
def test_workers_and_messages_have_the_bits_of_the_loop(config, tmp_path):
    expected, reports = local(4, **config)
    assert_same(local(4, 2, **config)[0], expected)
    over_flower, others = deployed(4, {**config, "residuals": str(tmp_path)})
    assert_same(over_flower, expected)
    without = "+".join(part for part in config["method"].split("+") if part not in EVERY) or "fedavg"
    assert not torch.equal(local(4, **{**config, "method": without})[0].w, expected.w)
    for mine, theirs in zip(others, reports, strict=True):
        for key in ("upload_bytes", "download_bytes"):  # but for headers
            assert getattr(mine, key) == pytest.approx(getattr(theirs, key), abs=200 * 12)


@pytest.mark.slow
def test_a_server_that_is_resumed_asks_for_the_variates_of_its_checkpoint(tmp_path):
    """Its clients have gone on meanwhile, and have kept that too."""
    config = {"method": "partitioned+scaffold+yogi", "residuals": str(tmp_path / "kept")}
    federation, _ = deployed(2, config)
    resumed = again(federation, tmp_path / "run.pt")
    expected, _ = deployed(4, config, federation=federation)
    assert_same(deployed(4, config, federation=resumed)[0], expected)


@pytest.mark.slow
def test_a_reply_that_is_lost_leaves_the_older_variate(tmp_path):
    protocol = build({"method": "scaffold"}).protocol
    victim = min(set(protocol.cohort(1)) & {*protocol.cohort(2), *protocol.cohort(3)})

    def lose(reply):
        header = reply.content["config"]
        lost = (header["client"], header.get("round")) == (victim, 1)
        return None if lost else reply

    config = {"method": "scaffold", "on_client_error": "skip", "residuals": str(tmp_path)}
    federation, reports = deployed(3, config, tamper=lose)
    assert [skip["client"] for skip in reports[0].skipped] == [victim]
    versions = federation.stage(Kept).residuals.versions
    assert versions[victim][0] in (2, 3)


@pytest.mark.quick(1)
@pytest.mark.parametrize("method", ["partitioned+scaffold", "feddyn+yogi", "fedavgm", "adagrad+fedprox"])
def test_a_stopped_run_goes_on_to_the_same_bits(method, tmp_path):
    def run(rounds, **more):
        task = Task(chain_net(), samples=1)
        known = {"chunks": (0.6, 0.4), "cohort": 4, "seed": 6, "method": method}
        return federate(task, shards(SIZES), rounds=rounds, **known, **more)

    path = tmp_path / "run.pt"
    run(3, checkpoint=path)
    assert_same(run(5, checkpoint=path, resume=True), run(5))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": "fedavg+scafold"}, "Unknown way to combine 'scafold': did you mean 'scaffold'"),
        ({"method": "scafold"}, "Unknown method 'scafold': did you mean 'scaffold'"),
        ({"method": "fedprox+scaffold"}, "two ways to combine that exclude each other"),
        ({"method": "yogi+fedavgm"}, "two ways to combine that exclude each other"),
        ({"method": "fedex+scaffold"}, "may give clients a loss or settings of their own"),
        ({"method": "scaffold", "defence": "trim", "weighting": "uniform"}, "leave defence out"),
        ({"method": "partitioned+fednova", "buffer": 2}, "leave buffer out"),
        ({"method": "scaffold", "clip": ClipSettings(multiple=4.0)}, "give numbers to which clients clip"),
        ({"method": "partitioned+feddyn", "clip": ClipSettings(multiple=4.0)}, "or leave clip out"),
        ({"method": "fedprox", "method_options": {"nu": 1}}, "does not take the options {'nu': 1}"),
        ({"method": "fedprox", "method_options": {"mu": -1.0}}, "mu is a number >= 0"),
        ({"method": "feddyn", "method_options": {"alpha": 0}}, "alpha is a number above 0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(changes, says):
    with pytest.raises(ValueError, match=says):
        Protocol(Task(chain_net(), samples=1), settings(8, chunks=(0.5, 0.5), **changes))


def test_fused_clients_keep_nothing_and_centralised_methods_combine_nobody():
    with pytest.raises(ValueError, match="keep something; use execution: loop"):
        after(1, made("scaffold", 1, 64), shards(SIZES), execution="fused")
    with pytest.raises(ValueError, match="'none' has none; use it alone"):
        build_method("none+scaffold", {})


def test_the_server_of_feddyn_adds_unless_the_name_says_another():
    adam = settings(8, method="fedavg").server
    servers = [settings(8, method=name).stepped_by for name in ("feddyn", "feddyn+yogi", "scaffold")]
    assert servers[0] == SGDSettings(1.0) and servers[1] != servers[0] and servers[2] == adam


def test_a_run_whose_variates_may_grow_says_so_beforehand():
    said = unsteady(made("partitioned+scaffold", 2, 3, max_examples=10).protocol)  # four steps, twice
    assert "here up to 8 a round" in said and "divide local.learning_rate by about 8." in said
    for method, epochs, batch in (("fedavg", 2, 3), ("feddyn", 2, 3), ("scaffold", 1, 10)):
        assert unsteady(made(method, epochs, batch, max_examples=10).protocol) == ""


def test_options_go_to_whom_they_belong():
    options = {"augment": True, "mu": 0.2, "learning_rate": 0.5}
    fixed = settings(8, method="fedavg+fedprox+yogi", method_options=options)
    assert build_method(fixed.method, options).augment
    assert (fixed.combination.pull, fixed.stepped_by.learning_rate) == (0.2, 0.5)
    assert settings(8, method="fedprox", server=SGDSettings(1.0)).stepped_by == SGDSettings(1.0)
