import os
import resource
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from flower_experiment import CLIENTS, assert_equal_runs, build, load, local
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from problems import after
from sizes import TWO

from fedpart import Federation
from fedpart.flower.messages import instruction, state_record
from fedpart.flower.strategy import FedPart
from fedpart.flower.workarounds.objects import claim_identity, message_bytes
from simulations.building.experiment import build as build_experiment
from simulations.config.load import ExperimentConfig
from simulations.ray.actor import FIRST_NODE, WAITING, make_slots, pack, unpack, writing
from simulations.ray.engine import starting
from simulations.ray.grid import RayGrid

import ray  # isort: skip  (after the environment is set)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


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


def test_clients_evaluate_and_try_settings_also_where_everything_travels_through_ray(monkeypatch):
    """Without slots."""
    monkeypatch.setattr("simulations.ray.actor.make_slots", lambda count: [])
    config = {"method": "fedex", "evaluation": "clients", "evaluation_share": 0.3}
    with RayGrid(load, CLIENTS, config, workers=1) as grid:
        one, other = run(grid, 3, **config), local(3, **config)
    assert_equal_runs(one, other)
    assert other[1][-1].client_accuracy is not None


def test_client_that_kills_its_actor_in_mid_round_once_and_one_that_raises(tmp_path):
    """The others of its calls are not lost."""
    raising, victim = build({}).protocol.cohort(1)[-2], build({}).protocol.cohort(2)[1]
    config = {"dying": victim, "marker": str(tmp_path / "died"), "failing": raising}
    with RayGrid(load, CLIENTS, config, workers=2) as grid:
        result = run(grid, 3, on_client_error="skip")
    assert (tmp_path / "died").exists() and raising in {s["client"] for s in result[1][0].skipped}
    assert_equal_runs(result, local(3, on_client_error="skip", failing=raising))


def test_timeout_gives_up_and_the_grid_goes_on(grid):
    messages = to_clients("query", config=ConfigRecord())
    assert len(list(grid.send_and_receive(messages, timeout=0.0))) < CLIENTS
    assert len(list(grid.send_and_receive(messages))) == CLIENTS


def instructions(federation, clients=CLIENTS):
    """What a strategy sends to the clients, all of them with the same arrays."""
    protocol = federation.protocol
    state = state_record(federation.start(1), protocol, federation.partition)
    return [instruction(protocol, 1, client, FIRST_NODE + client, state) for client in range(clients)]


def odd():
    """Leaves a file per message to train: how many were answered before, less those ``taken``. Sends queries
    back, client 5 as what cannot be pickled; to evaluate ends the process of client 0."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        folder = Path(context.run_config["folder"])
        ahead = len(list(folder.glob("answered-*")))  # this first: more may be taken meanwhile
        ahead -= len(list(folder.glob("taken-*")))
        (folder / f"answered-{message.metadata.dst_node_id}").write_text(str(ahead))
        return Message(RecordDict(), reply_to=message)

    @app.query()
    def query(message, context):
        reply = Message(message.content, reply_to=message)
        if context.node_config["partition-id"] == 5:
            reply.__dict__["lock"] = threading.Lock()
        return reply

    @app.evaluate()
    def evaluate(message, context):
        if context.node_config["partition-id"] == 0:
            os._exit(1)
        return Message(RecordDict(), reply_to=message)

    return app


@pytest.fixture(scope="module")
def odd_grid(cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("noted")
    with RayGrid(odd, CLIENTS, {"folder": str(folder)}, workers=2) as grid:
        yield grid, folder


@pytest.fixture
def noted(odd_grid):
    """A grid whose clients leave files, their folder, and what waits until there are as many as it says."""
    grid, folder = odd_grid
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


def to_clients(kind, clients=range(CLIENTS), **content):
    return [Message(RecordDict(content), FIRST_NODE + client, kind) for client in clients]


def test_a_reply_that_cannot_be_pickled_fails_alone(odd_grid):
    replies = list(odd_grid[0].send_and_receive(to_clients("query")))
    assert [client for client, reply in enumerate(replies) if reply.has_error()] == [5]
    assert "lock" in replies[5].error.reason and len(replies) == CLIENTS


def test_who_is_beside_a_message_that_kills_is_not_to_blame(odd_grid):
    replies = list(odd_grid[0].send_and_receive(to_clients("evaluate", (1, 2, 3, 0, 4, 5, 6, 7))))
    assert len(replies) == 8, "what waits behind it runs again"
    (one,) = (reply for reply in replies if reply.has_error())
    assert one.metadata.src_node_id == FIRST_NODE and one.error.reason.startswith("its process died 3 times")


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


def test_what_messages_share_may_be_sent_back(odd_grid):
    messages = to_clients("query", range(3), a=ArrayRecord({"x": Array(np.arange(5.0))}))
    replies = [reply.content["a"]["x"].numpy() for reply in odd_grid[0].send_and_receive(messages)]
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
    assert_equal_runs(local(2, 2), local(2))
    assert ray.get(ray.put(1)) == 1


SIX = {"architectures": TWO, "clients": 6, "cohort": 3, "training_points": 120}
SIZED = {**SIX, "sharing": {"kind": "bank"}, "download": "bf16", "upload": "topk", "error_feedback": True}
DRAWN = {**SIX, "clip": {"multiple": 2.0}, "local": {"batch_size": 4}}
DRAWN |= {"method_options": {"partitioned": {"draw_sizes": True}}}
WARDS = {"data": "table", "data_options": {"target": "ill", "client": "ward"}, "model": "mlp", "cohort": 3}
WARDS |= {"model_options": {"hidden": [4]}, "hyperparameters": {"dropout": {}}, "clients": 5}
WARDS |= {"evaluation": "clients", "evaluation_share": None, "evaluate_every": 1}
WARDS |= {"devices": {"speed": {"lognormal": [20, 1]}}, "buffer": 2}


@pytest.mark.parametrize("known", [SIZED, DRAWN, WARDS], ids=["sizes", "drawn", "wards"])
def test_engine_runs_a_configuration(tmp_path, known):
    """Sizes that share, rounded, and fed back; or are drawn; or steps that take clients of several versions
    of the weights, whom the data know: with shards of several sizes, and rows of their own to score on."""
    rows = [f"{i},{i % 7},w{min(i % 10, 4)},{i % 2}" for i in range(120)]
    (tmp_path / "wards.csv").write_text("\n".join(["a,b,ward,ill", *rows]))
    place = {"data_dir": str(tmp_path / "wards.csv")} if known == WARDS else {}
    config = ExperimentConfig.from_dict({"samples": 2, "workers": 1} | known | place)
    experiment = build_experiment(config)
    federation, reports = Federation(experiment.protocol), []
    with starting(config, tmp_path) as make, make(experiment, federation) as engine:
        engine.run(1, reports.append)
        engine.run(3, reports.append)
        engine.run(3, reports.append)
    assert [report.round for report in reports] == [1, 2, 3]
    if known == WARDS:
        assert reports[1].staleness > 0 and reports[-1].client_nll is not None
        assert len({len(shard) for shard in experiment.shards}) > 1
    other = Federation(experiment.protocol)
    expected = after(3, other, experiment.shards, evaluate_every=config.evaluate_every)
    assert_equal_runs((federation, reports), expected)
