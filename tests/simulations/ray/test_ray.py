import os
import resource
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from flower_experiment import CLIENTS, assert_equal_runs, build, load, local
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from sizes import TWO
from tiny import KEPT, tiny

from fedpart import ClientError, Federation
from fedpart.engines import LocalEngine, local_engine
from fedpart.flower.messages import instruction, state_record
from fedpart.flower.strategy import FedPart
from fedpart.flower.workarounds.objects import claim_identity, message_bytes
from simulations.building.experiment import build as build_experiment
from simulations.config.load import ExperimentConfig
from simulations.ray.actor import FIRST_NODE, WAITING, make_slots, pack, unpack, writing
from simulations.ray.engine import starting
from simulations.ray.grid import RayGrid
from simulations.running.run import run_experiment

import ray  # isort: skip  (after the environment is set)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def grid(cluster):
    with RayGrid(load, CLIENTS, {}, workers=2) as grid:
        yield grid


def run(grid, rounds, **config):
    federation, reports = Federation(build({"node_timeout": 600.0, **config}).protocol), []
    FedPart(federation, on_round=reports.append).run(grid, rounds)
    return federation, reports


def under_way(grid):
    """Messages that actors have."""
    return sum(len(call) for actor in grid._actors for call in actor.calls)


def test_ray_equals_the_local_engine_twice(grid):
    expected = local(4)
    assert_equal_runs(run(grid, 4), expected)
    assert_equal_runs(run(grid, 4), expected)


def test_clients_evaluate_and_try_settings_on_ray_as_they_do_here():
    config = {"method": "fedex", "evaluation": "clients", "evaluation_share": 0.3}
    with RayGrid(load, CLIENTS, config, workers=1) as grid:
        one, other = run(grid, 3, **config), local(3, **config)
    assert_equal_runs(one, other)
    assert other[1][-1].client_accuracy is not None


def test_client_that_kills_its_actor_in_mid_round_once(tmp_path):
    victim = build({}).protocol.cohort(2)[1]
    config = {"dying": victim, "marker": str(tmp_path / "died")}
    with RayGrid(load, CLIENTS, config, workers=2) as grid:
        result = run(grid, 3)
    assert (tmp_path / "died").exists()
    assert_equal_runs(result, local(3))


def test_client_that_always_kills_its_actor_and_one_that_raises(tmp_path):
    raising, victim = build({}).protocol.cohort(1)[:2]
    config = {"dying": victim, "marker": str(tmp_path / "died"), "always": True, "failing": raising}
    with RayGrid(load, CLIENTS, config, workers=2) as grid:
        _, reports = run(grid, 1, on_client_error="skip")  # the others of its calls are not lost
        with pytest.raises(ClientError, match=rf"^Client {raising} failed in round 1: KeyError: .*the disk"):
            run(grid, 1)
    reasons = {skip["client"]: skip["reason"] for skip in reports[0].skipped}
    assert sorted(reasons) == [raising, victim]
    assert reasons[victim].startswith(f"Client {victim} failed in round 1: its process died 3 times")


def one_client_that_dies():
    """A client app that replies what it is sent; client 0 ends its process, each time."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        if context.node_config["partition-id"] == 0:
            os._exit(1)
        return Message(message.content, reply_to=message)

    return app


def test_who_is_beside_a_message_that_kills_is_not_to_blame():
    with RayGrid(one_client_that_dies, CLIENTS, workers=1) as grid:
        messages = instructions(Federation(build({}).protocol))
        replies = list(grid.send_and_receive([*messages[1:3], messages[0], *messages[3:5]]))
    assert len(replies) == 5, "what waits behind it runs again"
    assert [r.metadata.src_node_id for r in replies if r.has_error()] == [FIRST_NODE]


def test_timeout_gives_up_and_the_grid_goes_on(grid):
    content = RecordDict({"config": ConfigRecord()})
    messages = [Message(content, node, "query") for node in grid.get_node_ids()]
    assert len(list(grid.send_and_receive(messages, timeout=0.0))) < CLIENTS
    assert len(list(grid.send_and_receive(messages))) == CLIENTS


def instructions(federation, clients=CLIENTS):
    """What a strategy sends to the clients, all of them with the same arrays."""
    protocol = federation.protocol
    state = state_record(federation.start(1), protocol, federation.partition)
    return [instruction(protocol, 1, client, FIRST_NODE + client, state) for client in range(clients)]


def noting():
    """A client app that leaves a file per message: how many were answered before, less those ``taken``."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        folder = Path(context.run_config["folder"])
        ahead = len(list(folder.glob("answered-*")))  # this first: more may be taken meanwhile
        ahead -= len(list(folder.glob("taken-*")))
        (folder / f"answered-{message.metadata.dst_node_id}").write_text(str(ahead))
        return Message(RecordDict(), reply_to=message)

    return app


@pytest.fixture(scope="module")
def noting_grid(cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("noted")
    with RayGrid(noting, CLIENTS, {"folder": str(folder)}, workers=2) as grid:
        yield grid, folder


@pytest.fixture
def noted(noting_grid):
    """A grid whose clients leave files, their folder, and what waits until there are as many as it says."""
    grid, folder = noting_grid
    for file in folder.iterdir():
        file.unlink()

    def wait_for(count):
        end = time.monotonic() + 600
        while len(list(folder.glob("answered-*"))) < count:
            assert time.monotonic() < end, f"{count} messages should have been answered"
            time.sleep(0.01)

    return grid, folder, wait_for


def test_one_call_per_actor_whose_replies_come_in_the_order_of_messages_and_few_at_a_time(noted):
    grid, folder, wait_for = noted
    messages = instructions(Federation(build({}).protocol))[::-1]
    replies = []
    (folder / "taken-1").touch()
    for taken, reply in enumerate(grid.send_and_receive(messages), 1):
        if taken == 3:
            assert [len(actor.calls) for actor in grid._actors] == [1, 1]
        wait_for(min(CLIENTS, taken + 2 * WAITING))
        (folder / f"taken-{taken + 1}").touch()
        assert not grid._replies and under_way(grid) == CLIENTS - taken
        replies.append(reply)
    assert [r.metadata.reply_to_message_id for r in replies] == [m.metadata.message_id for m in messages]
    ahead = [int(file.read_text()) for file in folder.glob("answered-*")]
    assert max(ahead) < 2 * WAITING, "whoever takes replies slowly holds actors back"


def test_who_asks_for_replies_now_and_then_holds_nobody_back(noted):
    grid, _, wait_for = noted
    ids = grid.push_messages(instructions(Federation(build({}).protocol)))
    wait_for(CLIENTS)  # all have answered, and the last reply may still be on its way
    end, replies = time.monotonic() + 600, []
    while len(replies) < CLIENTS and time.monotonic() < end:
        replies += grid.pull_messages(ids)
        time.sleep(0.01)
    assert sorted(reply.metadata.reply_to_message_id for reply in replies) == sorted(ids)
    assert not grid._replies and not under_way(grid)


def echo_but_one():
    """A client app that replies what it is sent; client 5 replies what cannot be pickled."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        reply = Message(message.content, reply_to=message)
        if context.node_config["partition-id"] == 5:
            reply.__dict__["lock"] = threading.Lock()
        return reply

    return app


@pytest.fixture(scope="module")
def echo(cluster):
    with RayGrid(echo_but_one, CLIENTS, workers=1) as grid:
        yield grid


def test_a_reply_that_cannot_be_pickled_fails_alone(echo):
    replies = list(echo.send_and_receive(instructions(Federation(build({}).protocol))))
    assert [client for client, reply in enumerate(replies) if reply.has_error()] == [5]
    assert "lock" in replies[5].error.reason and len(replies) == CLIENTS


def test_who_stops_reading_leaves_nothing_behind(grid):
    federation = Federation(build({}).protocol)
    for read in (0, 1, 4):
        stream = grid.send_and_receive(instructions(federation))
        for _ in range(read):
            assert next(stream).has_content()
        stream.close()
        assert not grid._replies and not under_way(grid)
    assert_equal_runs(run(grid, 2), local(2))
    assert not grid._replies and not under_way(grid)


def test_the_servers_values_are_stored_once_a_round(grid, monkeypatch):
    stored, put = [], ray.put
    monkeypatch.setattr(ray, "put", lambda record: stored.append(record) or put(record))
    run(grid, 3)
    assert len(stored) == 3, "not once per client"


def test_arrays_travel_beside_their_message():
    claim_identity()
    array = np.arange(5.0)
    content = RecordDict({"a": ArrayRecord({"x": Array(array)}), "c": ConfigRecord({"n": 1})})
    message = Message(content, 1, "train")
    before = message_to_proto(message).SerializeToString(deterministic=True)
    (slot,) = make_slots(1)
    for address, kind in ((slot.address, tuple), (None, np.ndarray)):
        with writing(address) as writer:
            light, buffers = pack(message, writer)
        assert message_bytes(light) < 150 and [type(part) for part in buffers] == [kind]
        message = unpack((light, buffers), slot)
        assert message_to_proto(message).SerializeToString(deterministic=True) == before


def test_what_messages_share_may_be_sent_back(echo):
    shared = ArrayRecord({"x": Array(np.arange(5.0))})
    messages = [Message(RecordDict({"a": shared}), FIRST_NODE + client, "train") for client in range(3)]
    replies = [reply.content["a"]["x"].numpy() for reply in echo.send_and_receive(messages)]
    assert [reply.tolist() for reply in replies] == 3 * [[0, 1, 2, 3, 4]]


def test_what_a_slot_has_no_room_for_travels_through_ray():
    data = np.arange(100, dtype=np.uint8)
    slot, other = make_slots(2)
    path, name = slot.address
    for address in ((path, other.address[1]), (path[:-1], name), ("/proc/0/fd/0", name), None):
        with writing(address) as writer:
            assert writer.write(data) is data, "on another machine the path may be anybody's"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with writing(slot.address) as writer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (250, limits[1]))
        try:
            places = [writer.write(data) for _ in range(3)]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert places[:2] == [(0, 100), (100, 100)] and places[2] is data
    assert slot.read(places[1]) == slot.read(places[0]) == data.tobytes() and slot.read((0, 0)) == b""
    with writing(slot.address) as writer:  # again, from its beginning, and more
        places = [writer.write(data[::-1].copy()) for _ in range(50)]
    assert [slot.read(place) for place in places] == [data[::-1].tobytes()] * 50


def test_without_slots_everything_travels_through_ray(monkeypatch):
    monkeypatch.setattr("simulations.ray.actor.make_slots", lambda count: [])
    with RayGrid(load, CLIENTS, {}, workers=1) as grid:
        assert_equal_runs(run(grid, 2), local(2))


def test_slots_are_kept_but_those_of_dead_actors(grid):
    run(grid, 2)
    before = [set(actor.slots) for actor in grid._actors]
    run(grid, 2)
    ray.kill(grid._actors[0].handle)
    assert_equal_runs(run(grid, 2), local(2))
    after = [set(actor.slots) for actor in grid._actors]
    assert len(grid._actors) == 2 and not under_way(grid)
    assert len(after[0]) == WAITING + 1 and not after[0] & before[0] and after[1] == before[1]


def test_worker_processes_beside_ray():
    """This process is connected to Ray, whose threads a fork does not copy."""
    experiment = build({})
    federation, reports = Federation(experiment.protocol), []
    with LocalEngine(federation, experiment.shards, 2) as engine:
        engine.run(2, reports.append)
    assert_equal_runs((federation, reports), local(2))
    assert ray.get(ray.put(1)) == 1


SLOW = {"devices": {"speed": {"lognormal": [20, 1]}}, "buffer": 2}


SIZED = {"architectures": TWO, "sharing": {"kind": "bank"}, "download": "bf16"}
SIZED |= {"upload": "topk", "error_feedback": True}


DRAWN = {"architectures": TWO, "clip": {"multiple": 2.0}, "local": {"batch_size": 4}}
DRAWN |= {"method_options": {"partitioned": {"draw_sizes": True}}}


@pytest.mark.parametrize("more", [SLOW, SIZED, DRAWN], ids=["slow", "sizes", "drawn"])
def test_engine_runs_a_configuration(tmp_path, more):
    """Steps that take clients of several versions of the weights; sizes that share, rounded, and fed back; or
    that are drawn."""
    known = {
        "clients": 6,
        "cohort": 3,
        "samples": 2,
        "training_points": 120,
        "workers": 1 + (more == SLOW),
        **more,
    }
    experiment = build_experiment(ExperimentConfig.from_dict(known))
    federation, reports = Federation(experiment.protocol), []
    with starting(experiment.config, tmp_path) as make, make(experiment, federation) as engine:
        engine.run(1, reports.append)
        engine.run(3, reports.append)
        engine.run(3, reports.append)
    assert [report.round for report in reports] == [1, 2, 3]
    assert more != SLOW or reports[1].staleness > 0

    other, expected = Federation(experiment.protocol), []
    local_engine(other, experiment.shards).run(3, expected.append)
    assert_equal_runs((federation, reports), (other, expected))


def test_clients_whom_the_data_know_have_their_rows_on_ray_too(tmp_path):
    """Of several sizes, and what they score on is their own."""
    table = tmp_path / "wards.csv"
    rows = [f"{i},{i % 7},w{min(i % 10, 4)},{i % 2}" for i in range(120)]
    table.write_text("\n".join(["a,b,ward,ill", *rows]))
    known = {"data": "table", "data_dir": str(table), "data_options": {"target": "ill", "client": "ward"}}
    known |= {"model": "mlp", "model_options": {"hidden": [4]}, "hyperparameters": {"dropout": {}}}
    known |= {"clients": 5, "cohort": 3, "samples": 1, "evaluation": "clients", "evaluation_share": None}
    experiment = build_experiment(ExperimentConfig.from_dict(known | {"evaluate_every": 1, "workers": 1}))
    assert len({len(shard) for shard in experiment.shards}) > 1
    federation, reports = Federation(experiment.protocol), []
    with starting(experiment.config, tmp_path) as make, make(experiment, federation) as engine:
        engine.run(2, reports.append)
    other, expected = Federation(experiment.protocol), []
    LocalEngine(other, experiment.shards, evaluate_every=1).run(2, expected.append)
    assert reports[-1].client_nll is not None
    assert_equal_runs((federation, reports), (other, expected))


def test_the_best_round_is_kept_to_the_same_bits(tmp_path):
    for name, more in (("here", {}), ("there", {"engine": "ray", "workers": 1})):
        run_experiment(tiny(**KEPT, **more), tmp_path / name)
    states = [(tmp_path / name / "state.safetensors").read_bytes() for name in ("here", "there")]
    assert states[0] == states[1]
