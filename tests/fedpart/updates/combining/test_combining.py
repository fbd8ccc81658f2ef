"""Ways to combine clients, with methods, on engines, over stops, and what they refuse."""

import itertools

import pytest
import torch
from flower_experiment import deployed
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAvgM, FedProx, FedYogi
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

from fedpart import ClipSettings, Federation, LocalSettings, Protocol, SGDSettings, Task
from fedpart.engines.executor import Executor
from fedpart.federated.cohorts import sum_cohort
from fedpart.federated.report import unsteady
from fedpart.flower.workarounds.objects import claim_identity
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


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", ["scaffold", "feddyn", "fednova+yogi", "fedprox"])
def test_with_partitioned_training_clients_computed_together_agree(way):
    loop, grouped = (
        after(2, made(f"partitioned+{way}"), shards(SIZES), execution=kind)[0] for kind in ("loop", "grouped")
    )
    assert_near(grouped, loop)


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


def test_where_each_client_takes_one_step_these_are_the_mean_fused_or_not():
    one = {"epochs": 1, "batch": 64}
    plain = after(2, made("partitioned", **one), shards(SIZES))[0]
    for way, execution in itertools.product(("fedprox", "fednova"), ("loop", "fused")):
        assert_near(after(2, made(f"partitioned+{way}", **one), shards(SIZES), execution=execution)[0], plain)


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", ["scaffold", "feddyn"])
def test_what_clients_keep_adds_up_to_what_the_server_has(way):
    """The mean of the variates of the clients that train a partition, by their examples."""
    federation = after(3, made(f"partitioned+{way}", cohort=8), shards(SIZES))[0]
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


@pytest.mark.slow
def test_a_server_that_is_resumed_asks_for_what_its_checkpoint_knows(tmp_path):
    """Its clients have gone on meanwhile, and have kept that too."""
    config = {"method": "partitioned+scaffold+yogi", "residuals": str(tmp_path / "kept"), **FED_BACK}
    federation, _ = deployed(2, config)
    resumed = again(federation, tmp_path / "run.pt")
    expected, _ = deployed(3, config, federation=federation)
    assert_same(deployed(3, config, federation=resumed)[0], expected)


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
        ({"method": "partitioned+fedrep"}, "through weights that a client has for itself"),
        ({"method": "fedrep", "evaluation": "central"}, "set evaluation: clients"),
        ({"method": "fedrep", "method_options": {"head": ["9.*"]}}, "No trained weight .* fedrep's head '9"),
        ({"method": "fedrep", "method_options": {"head": ["*"]}}, "nothing is shared; keep fewer"),
        ({"method": "fedrep", "method_options": {"head": []}}, "head is empty"),
        ({"method": "fedrep", "method_options": {"head_epochs": -1}}, "head_epochs"),
        ({"method": "fedbn"}, "no.* that is trained; use another network, or fedrep"),
        ({"method": "ditto", "method_options": {"lam": -1}}, "lam is a number >= 0"),
        ({"method": "ditto", "buffer": 2}, "leave buffer out"),
        ({"method": "ditto+fedprox"}, "two ways to combine that exclude each other"),
        ({"method": "fedex+ditto"}, "use one of the two"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(changes, says):
    known = {"chunks": (0.5, 0.5), "evaluation": "clients"}
    with pytest.raises(ValueError, match=says):
        Protocol(Task(chain_net(), samples=1), settings(8, **{**known, **changes}))


def test_all_are_known_fused_clients_keep_nothing_and_centralised_methods_combine_nobody():
    with pytest.raises(ValueError, match="keep something; use execution: loop"):
        after(1, made("scaffold", 1, 64), shards(SIZES), execution="fused")
    with pytest.raises(ValueError, match="'none' has none; use it alone"):
        build_method("none+scaffold", {})
    assert sorted([*EVERY, "ditto", "fedbn", "fedrep"]) == COMBINATIONS.names()


def test_options_go_to_whom_they_belong_and_feddyns_server_adds_unless_the_name_says_another():
    adam = settings(8, method="fedavg").server
    servers = [settings(8, method=name).stepped_by for name in ("feddyn", "feddyn+yogi", "scaffold")]
    assert servers[0] == SGDSettings(1.0) and servers[1] != servers[0] and servers[2] == adam
    options = {"augment": True, "mu": 0.2, "learning_rate": 0.5}
    fixed = settings(8, method="fedavg+fedprox+yogi", method_options=options)
    assert build_method(fixed.method, options).augment
    assert (fixed.combination.pull, fixed.stepped_by.learning_rate) == (0.2, 0.5)
    assert settings(8, method="fedprox", server=SGDSettings(1.0)).stepped_by == SGDSettings(1.0)


def test_a_run_whose_variates_may_grow_says_so_beforehand():
    said = unsteady(made("partitioned+scaffold", 2, 3, max_examples=10).protocol)  # four steps, twice
    assert "here up to 8 a round" in said and "divide local.learning_rate by about 8." in said
    for method, epochs, batch in (("fedavg", 2, 3), ("feddyn", 2, 3), ("scaffold", 1, 10)):
        assert unsteady(made(method, epochs, batch, max_examples=10).protocol) == ""


COUNTS, OF_FLOWER = [3, 7, 2, 9, 4], 5
STRATEGIES = {
    "fedprox": (FedProx(proximal_mu=0.5), {"mu": 0.5}),
    "yogi": (FedYogi(eta=0.02, beta_1=0.8, beta_2=0.95, tau=1e-2), {"eps": 1e-2, "betas": (0.8, 0.95)}),
    "adagrad": (FedAdagrad(eta=0.02, tau=1e-2), {"eps": 1e-2}),
    "fedavgm": (FedAvgM(server_learning_rate=0.02, server_momentum=0.7), {"momentum": 0.7}),
}


def reply(w, examples):
    claim_identity()
    sent = Message(RecordDict(), 1, "train")
    arrays, metrics = ArrayRecord({"w": Array(w.numpy())}), MetricRecord({"num-examples": examples})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=sent)


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", STRATEGIES)
def test_the_weights_are_those_of_flower(way):
    strategy, options = STRATEGIES[way]
    options = options if way == "fedprox" else {**options, "learning_rate": 0.02}
    how = LocalSettings(learning_rate=0.3, batch_size=2, epochs=2)
    server = {"server": SGDSettings(1.0), "local": how, "chunks": (1.0,)}
    task = Task(chain_net(), samples=1, precision="fp64")
    protocol = Protocol(task, settings(5, method=way, method_options=options, **server))
    federation, executor, data = Federation(protocol), Executor(protocol), shards(COUNTS)
    for _ in range(OF_FLOWER):
        start, replies = federation.start(), []
        before = start.w.clone()

        def answer(client, start=start, before=before, replies=replies):
            update = executor.run(start, client, data[client], protocol.plan(client, start.number))
            replies.append(reply(before + update.parts[1], update.examples))
            return update

        found = sum_cohort(protocol, start, range(5), answer)
        if way == "fedavgm":
            strategy.current_arrays = strategy.current_arrays or ArrayRecord({"w": Array(before.numpy())})
        else:
            strategy.current_arrays = {"w": before.numpy()}
        theirs, _ = strategy.aggregate_train(start.number, replies)
        federation.step(found)
        torch.testing.assert_close(federation.w, torch.from_numpy(theirs["w"].numpy()), rtol=0, atol=1e-9)
    assert (federation.w - before).abs().max() > 1e-4
