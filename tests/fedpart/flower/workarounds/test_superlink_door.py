"""What a caller can make a SuperLink do, by its real app: bounded, and at the cost of nobody else."""

import asyncio
import copy
import json
import re
import threading
from types import SimpleNamespace

import pytest
from asgi import Asked, Served, ask
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.supercore.constant import TASK_TOKEN_HEADER, TaskType
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.dependencies.account import AccountAccessDependency
from flwr.superlink.federation.noop_federation_manager import NOOP_FEDERATION_ID
from flwr.superlink.routers.control.middlewares import CONTROL_AUTH_ROUTE_KEYS
from flwr.superlink.servicer.fleet import fleet_handlers

from fedpart.flower.workarounds import door
from fedpart.flower.workarounds.door import (
    AT_A_TIME,
    LOG_IN,
    NODE_BYTES,
    SERVER,
    STRANGER_BYTES,
    WAITING,
    Door,
    open_door,
)
from fedpart.flower.workarounds.fleet import Pushes, guard_pushes
from fedpart.flower.workarounds.superlink import Arrivals, admit_operator

PATIENCE = 300
NAMES = ("get-run", "push-object", "pull-messages", "send-node-heartbeat")
GET, PUSH, PULL, ALIVE = (f"/v1/fleet/{name}" for name in NAMES)
EMPTY = PullMessagesResponse()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The app of a SuperLink, as Flower has it."""
    with pytest.MonkeyPatch.context() as patch:
        yield Served(tmp_path_factory.mktemp("superlink"), patch)


@pytest.fixture
def served(plain, monkeypatch):
    """With the door, and the guard of pushes."""
    for name in ("push_messages", "push_object", "check_abort", "get_run"):
        monkeypatch.setattr(fleet_handlers, name, getattr(fleet_handlers, name))
    guard_pushes(Pushes())
    plain.state.activate_node(plain.id, 30)  # a test may have ended it
    served = copy.copy(plain)
    served.flowers, served.app = plain.app, Door(plain.app, Arrivals())
    return served


@pytest.fixture
def clock(monkeypatch):
    """Stands still, unless it is moved."""
    moment = [0.0]
    monkeypatch.setattr(door, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    return moment


@pytest.fixture
def said(monkeypatch):
    """What the log has of refusals."""
    lines = []
    monkeypatch.setattr(door, "log", lambda level, text, *values: lines.append(text % values))
    return lines


def get_run(served, run=1):
    return GetRunRequest(node=served.node, run_id=run).SerializeToString()


@pytest.mark.quick(3)
@pytest.mark.parametrize("path", [PUSH, *sorted(LOG_IN)])
@pytest.mark.parametrize("sized", [False, True])
def test_a_stranger_is_not_read_beyond_what_strangers_may_send(served, sized, path):
    parts = [bytes(2**12)] * 100
    heads = [("Content-Length", str(100 * 2**12))] if sized else []
    asked = ask(served.app, path, parts, heads)
    assert asked.status == 400 and str(STRANGER_BYTES) in json.loads(asked.body)["detail"]
    assert asked.parts == (0 if sized else STRANGER_BYTES // 2**12 + 1)


@pytest.mark.parametrize("path", ["start-run", "list-runs", "nothing"])
def test_nothing_of_an_operators_call_is_read_without_his_token(served, path):
    plugin = admit_operator(NoOpControlAuthnPlugin(), "token")
    served.flowers.state.account_access_dep = AccountAccessDependency(plugin)
    asked = ask(served.app, f"/v1/control/{path}", [bytes(2**12)] * 100)
    assert asked.status == 401 and asked.parts == 0


def test_these_calls_of_an_operator_need_no_token():
    assert {("POST", path) for path in LOG_IN} == CONTROL_AUTH_ROUTE_KEYS


def test_a_superlink_is_served_behind_the_door(monkeypatch):
    flower, given, ended = SimpleNamespace(uvicorn=None), {}, []
    for module, calls in {"gc": ("freeze", "set_threshold"), "sys": ("setswitchinterval",)}.items():
        monkeypatch.setattr(door, module, SimpleNamespace(**{call: lambda *given: None for call in calls}))
    monkeypatch.setattr(door.uvicorn, "run", lambda app, **more: given.update(app=app, **more))
    monkeypatch.setattr(door.uvicorn.Server, "handle_exit", lambda server, *signal: ended.append(signal))
    open_door(flower, SimpleNamespace(end=lambda: ended.append("waiting")))
    flower.uvicorn.run(app="Flower's", port=1)
    assert isinstance(given.pop("app"), Door) and given == {**SERVER, "port": 1}

    async def asked_to_end():
        door.uvicorn.Server.handle_exit(None, 15, None)
        await asyncio.sleep(0)

    asyncio.run(asked_to_end())
    assert ended == [(15, None), "waiting"]


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("comes", [False, True])
def test_who_asks_waits_at_the_door_and_who_has_gone_gets_no_message(served, monkeypatch, gone, comes):
    looked, arrivals = [], Arrivals()
    monkeypatch.setattr(fleet_handlers, "pull_messages", lambda *given, **more: looked.append(more) or EMPTY)
    app = Door(served.flowers, arrivals)
    arrivals.look((served.id, 0))

    async def asked():
        request = Asked(app, PULL, PullMessagesRequest(node=served.node).SerializeToString(), served.signed())
        asking = asyncio.create_task(request.answered())
        while not arrivals._asking:
            await asyncio.sleep(0.01)
        assert not looked
        if gone:
            request.leave()
        if comes or not gone:  # in the same moment
            arrivals.more((served.id, 0))
        return await asyncio.wait_for(asking, PATIENCE)

    answer = asyncio.run(asked())
    assert (answer.status, len(looked)) == ((0, 0) if gone else (200, 1))


def test_where_nothing_has_come_flower_is_not_asked(served, monkeypatch):
    monkeypatch.setitem(door.HELD, PULL, 0.05)
    arrivals, body = Arrivals(), PullMessagesRequest(node=served.node).SerializeToString()
    app = Door(served.flowers, arrivals)
    first = ask(app, PULL, body, served.signed())  # there may be something from before
    arrivals.look((served.id, 0))
    monkeypatch.setattr(fleet_handlers, "pull_messages", lambda *given, **more: 1 / 0)
    second = ask(app, PULL, body, served.signed())
    assert first.status == second.status == 200 and first.body == second.body
    assert ask(app, PULL, body).status == 401, "a stranger is Flower's"


@pytest.mark.parametrize(
    ("who", "interval", "status"), [("itself", 30, 200), ("itself", 1, 400), ("", 30, 401)]
)
def test_a_sign_of_life_is_answered_at_the_door_as_flower_answers_it(served, who, interval, status):
    fields = {"heartbeat_interval": interval} | ({"node": served.node} if who else {})
    request = SendNodeHeartbeatRequest(**fields).SerializeToString()
    ours, flowers = (ask(app, ALIVE, request, served.signed()) for app in (served.app, served.flowers))
    assert ours.status == flowers.status == status and ours.body == flowers.body
    assert status != 200 or SendNodeHeartbeatResponse.FromString(ours.body).success
    assert ask(served.app, ALIVE, b"junk", served.signed()).status == 400


def test_a_node_that_has_said_that_it_lives_is_there_for_longer(served):
    until = lambda: served.state.get_node_info(node_ids=[served.id])[0].online_until  # noqa: E731
    before = until()
    request = SendNodeHeartbeatRequest(node=served.node, heartbeat_interval=1000.0).SerializeToString()
    assert ask(served.app, ALIVE, request, served.signed()).status == 200
    assert until() > before


def test_who_pretends_to_be_a_node_is_a_stranger(served):
    (key, _), (at, when), (sign, signature) = served.signed()
    for heads in ([(key, "no base64"), (at, when)], [(key, _), (at, "yesterday"), (sign, signature)]):
        asked = ask(served.app, PUSH, [bytes(2**16)] * 3, heads)
        assert asked.status == 400 and asked.parts == 2
    small = ask(served.app, GET, get_run(served), [(key, _), (at, when), (sign, "AAAA")])
    assert small.status == 401, "as Flower answers"


@pytest.mark.parametrize("path", [*NODE_BYTES, GET])
def test_a_node_may_send_what_a_message_needs(served, path):
    limit = NODE_BYTES.get(path, STRANGER_BYTES)
    parts = [bytes(2**14)] * (limit // 2**14 + 10)
    asked = ask(served.app, path, parts, served.signed())
    assert asked.status == 400 and asked.parts == limit // 2**14 + 1


def test_a_serverapp_may_send_more(served):
    run = served.state.create_run("a/b", "1", "hash", {}, NOOP_FEDERATION_ID, None, "me", TaskType.SERVER_APP)
    (task,) = (one.primary_task_id for one in served.state.get_run_info(run_ids=[run]))
    token = served.state.claim_task(task)
    for heads, status in ([(TASK_TOKEN_HEADER, token)], 1003), ([(TASK_TOKEN_HEADER, "guessed")], None):
        asked = ask(served.app, "/v1/runtime/push-object", [b"\xff" * 2**20] * 9, heads)
        assert json.loads(asked.body).get("code") == status, "it has been read, and is nothing"
        assert (asked.parts == 9) == (status is not None)


def test_a_request_that_does_not_come_is_given_up(served, monkeypatch, said):
    monkeypatch.setattr(door, "PATIENCE", 0.0)
    monkeypatch.setattr(door, "PACE", 1e9)

    class Slow(Asked):
        async def _parts(self):
            yield {"type": "http.request", "body": b"x", "more_body": True}
            await asyncio.Event().wait()

    asked = asyncio.run(Slow(served.app, GET, headers=served.signed()).answered())
    assert asked.status == 400 and "too long" in json.loads(asked.body)["detail"]
    assert f"node {served.id}" in said[0] and "too long" in said[0]


def test_who_leaves_before_all_has_come_is_not_refused(served, said):
    class Leaves(Asked):
        async def _parts(self):
            yield {"type": "http.request", "body": b"x", "more_body": True}
            yield {"type": "http.disconnect"}

    asked = asyncio.run(Leaves(served.app, GET, headers=served.signed()).answered())
    assert not asked.status and not said


def test_a_nodes_requests_take_turns_and_the_other_threads_are_there_for_others(served, monkeypatch):
    go, inside, most = threading.Event(), [], []

    def slow(request, state):
        inside.append(request)
        most.append(len(inside))
        assert go.wait(PATIENCE)
        inside.pop()
        return GetRunResponse()

    monkeypatch.setattr(fleet_handlers, "get_run", slow)
    body, heads = get_run(served), served.signed()

    async def flood():
        asked = [Asked(served.app, GET, body, heads) for _ in range(AT_A_TIME + WAITING + 5)]
        answers = [asyncio.ensure_future(one.answered()) for one in asked]
        while sum(one.done() for one in answers) < 5 or len(inside) < AT_A_TIME:
            await asyncio.sleep(0.01)
        stranger = await Asked(served.app, GET, body).answered()
        go.set()
        await asyncio.gather(*answers)
        return asked, stranger

    asked, stranger = asyncio.run(flood())
    assert sorted(one.status for one in asked) == [200] * (AT_A_TIME + WAITING) + [429] * 5
    assert max(most) == AT_A_TIME and stranger.status == 401


def test_refusals_are_dear_and_time_heals_them(served, clock, said, monkeypatch):
    monkeypatch.setattr(fleet_handlers, "get_run", lambda request, state: GetRunResponse())
    junk = PushObjectRequest(node=served.node, run_id=77, object_id="no").SerializeToString()
    statuses = [ask(served.app, PUSH, junk, served.signed()).status for _ in range(30)]
    assert statuses == [400] * 20 + [429] * 10
    assert ask(served.app, GET, get_run(served), served.signed()).status == 429
    assert ask(served.app, GET, get_run(served)).status == 401, "another caller"
    named = [line for line in said if f"node {served.id}" in line]
    assert len(named) == 1 and "does not begin with a head" in named[0]
    clock[0] += 60  # seconds
    assert ask(served.app, GET, get_run(served), served.signed()).status == 200
    clock[0] += 0.001
    assert ask(served.app, PUSH, junk, served.signed()).status == 400
    assert len([line for line in said if f"node {served.id}" in line]) == 2


@pytest.mark.slow
def test_an_honest_nodes_pace_is_never_too_fast(served, clock, monkeypatch):
    """A hundred messages of ten parts a minute, in bursts."""
    monkeypatch.setattr(fleet_handlers, "get_run", lambda request, state: GetRunResponse())
    body, heads = get_run(served), served.signed()

    async def burst():
        return [(await Asked(served.app, GET, body, heads).answered()).status for _ in range(100)]

    for _ in range(3):
        assert set(asyncio.run(burst())) == {200}
        clock[0] += 1.0


@pytest.mark.parametrize("run", [0, 77])
def test_a_run_that_does_not_exist_is_no_fault_of_the_servers(served, run):
    id, known = "a" * 64, {"node": served.node, "run_id": run}
    message = Message(metadata=Metadata(run_id=run, message_id=id, src_node_id=served.id))
    pushed = {"messages_list": [message], "message_object_trees": [ObjectTree(object_id=id)]}
    requests = {
        "push-object": PushObjectRequest(object_id=id, **known),
        "pull-object": PullObjectRequest(object_id=id, **known),
        "push-messages": PushMessagesRequest(node=served.node, **pushed),
        "confirm-message-received": ConfirmMessageReceivedRequest(message_object_id=id, **known),
    }
    for name, request in requests.items():
        asked = ask(served.app, f"/v1/fleet/{name}", request.SerializeToString(), served.signed())
        assert asked.status == 400, name


@pytest.mark.parametrize("ahead", [600, -600, 0, -200])
def test_a_node_whose_clock_is_off_is_told_so_and_the_log_too(served, said, ahead):
    asked = ask(served.app, GET, get_run(served), served.signed(ahead))
    if abs(ahead) < 300:
        assert asked.status != 401 and said == []
        return
    where = "ahead of" if ahead > 0 else "behind"
    sentence = f"The SuperNode's clock is 600 s {where} the SuperLink's, .*; set both by NTP"
    assert asked.status == 401 and re.match(sentence, json.loads(asked.body)["detail"])
    assert len(said) == 1 and re.search(sentence, said[0])
