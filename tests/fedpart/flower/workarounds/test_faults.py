"""Faults of Flower, on its own code: where a test fails, Flower has mended one, and its workaround can go.

A comment names the files of the workarounds for what follows.
"""

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import uvicorn
from asgi import Asked, Served, ask
from flwr.app import Array, ConfigRecord, Message, RecordDict
from flwr.common.constant import ACCESS_TOKEN_KEY, Status, SubStatus
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.supercore.constant import TaskType
from flwr.supercore.corestate import sql_corestate
from flwr.supercore.date import now
from flwr.supercore.superexec.executor import SubprocessExecutor
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.grid import http_grid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from flwr.supernode.servicer.runtime import runtime_handlers
from hostile_node import broad
from one_message import REQUEST, OneMessage, clientapp, receive_until_the_run_ends
from superlink_state import SuperLink
from uvicorn.server import ServerState

from fedpart.flower.workarounds.control import SubmittedRun
from fedpart.flower.workarounds.door import SERVER
from fedpart.flower.workarounds.objects import RECORD_BYTES, RUN_ID, claim_identity
from fedpart.flower.workarounds.superlink import admit_operator

PATIENCE = 300  # seconds, for what takes a few where nothing else runs


@pytest.fixture
def superlink(tmp_path):
    yield SuperLink(tmp_path)
    claim_identity()


# fleet.py
def test_a_node_may_answer_in_the_name_of_another(superlink):
    other = superlink.nodes[1]
    superlink.push(superlink.asked[1], src_node_id=other)
    (reply,) = superlink.state.get_message_res({superlink.asked[1]}, superlink.run)
    assert reply.has_content() and reply.metadata.src_node_id == other


def test_a_time_that_is_no_number_makes_every_later_look_fail(superlink):
    superlink.push(superlink.asked[0], created_at=math.nan)
    for _ in range(2):
        with pytest.raises(TypeError, match="NoneType"):
            superlink.state.get_message_res({superlink.asked[0]}, superlink.run)


@pytest.mark.slow
def test_a_message_has_as_many_parts_as_it_claims(superlink):
    superlink.push(superlink.asked[0], broad(300))
    assert len(superlink.state.object_store) == 300


def test_what_answers_nothing_opens_a_session(superlink):
    before = superlink.count("object_push_sessions")
    for number in range(3):
        superlink.push(f"{number:064x}")
    assert superlink.count("object_push_sessions") == before + 3


def test_what_cannot_be_read_or_belongs_to_no_run_is_an_error(superlink):
    """Anything but an HTTPException, or an error of Flower's own, is answered with status 500."""
    for kind in ("", "unknown"):
        with pytest.raises(ValueError, match="Invalid message type"):
            superlink.push(superlink.asked[0], kind=kind)
    with pytest.raises(ValueError, match="Invalid object ID"):
        superlink.push(superlink.asked[0], ObjectTree(object_id="root"))
    with pytest.raises(KeyError):
        superlink.push(superlink.asked[0], run_id=superlink.run + 1)


# objects.py
def test_a_record_has_as_many_names_as_it_claims():
    large = ConfigRecord({str(number): number for number in range(10_000)}).deflate()
    assert len(large) > RECORD_BYTES and len(ConfigRecord.inflate(large)) == 10_000


# door.py
@pytest.mark.slow
def test_a_stranger_is_read_to_the_end(tmp_path, monkeypatch):
    parts = [bytes(2**16)] * 200
    asked = ask(Served(tmp_path, monkeypatch).app, "/v1/fleet/push-object", parts)
    assert asked.parts == len(parts) and 400 <= asked.status < 500


@pytest.mark.slow
def test_a_node_may_have_all_threads(tmp_path, monkeypatch):
    served, together = Served(tmp_path, monkeypatch), threading.Barrier(20)

    def get_run(request, state):
        together.wait(PATIENCE)
        return GetRunResponse()

    monkeypatch.setattr(fleet_handlers, "get_run", get_run)
    body, heads = GetRunRequest(node=served.node).SerializeToString(), served.signed()

    async def all_at_once():
        requests = [Asked(served.app, "/v1/fleet/get-run", body, heads) for _ in range(together.parties)]
        return await asyncio.gather(*(one.answered() for one in requests))

    assert {one.status for one in asyncio.run(all_at_once())} == {200}


class Wire(asyncio.Transport):
    """One end of a connection; what has been written to it."""

    def __init__(self):
        super().__init__({"socket": None})
        self.written, self.closed = b"", False

    def write(self, data):
        self.written += data

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        pass

    resume_reading = pause_reading


def test_heads_have_no_end():
    async def answer(**options):
        config = uvicorn.Config(None, log_level="critical", **options)
        config.load()
        wire = Wire()
        server = config.http_protocol_class(config, ServerState(), {})
        server.connection_made(wire)
        server.data_received(b"GET / HTTP/1.1\r\nHost: here\r\n")
        for number in range(100):
            if not wire.closed:
                server.data_received(b"more-%d: %s\r\n" % (number, b"m" * 2**14))
        return wire.written

    assert asyncio.run(answer()) == b"", "it goes on reading"
    assert asyncio.run(answer(**SERVER)).startswith(b"HTTP/1.1 400")


# database.py
def test_a_message_whose_receipt_nobody_has_confirmed_is_not_sent_again(superlink):
    node = superlink.nodes[0]
    assert [one.metadata.message_id for one in superlink.state.get_message_ins(node, None)] == ["0" * 64]
    assert superlink.state.get_message_ins(node, None) == []


# superlink.py
def test_everybody_may_submit_a_run():
    assert NoOpControlAuthnPlugin().validate_tokens_in_metadata([])[0]
    ours = admit_operator(NoOpControlAuthnPlugin(), "token")
    assert not ours.validate_tokens_in_metadata([])[0]
    assert ours.validate_tokens_in_metadata([(ACCESS_TOKEN_KEY, "token")])[0]


# objects.py
def test_messages_need_an_identity_that_nobody_else_can_give(monkeypatch):
    claim_identity()
    message = Message(RecordDict(), 1, "train")
    with pytest.raises(AttributeError):
        message.metadata.message_id = "another"
    monkeypatch.setattr(TaskIdentity, "_run_id", None)
    with pytest.raises(RuntimeError, match="not set"):
        Message(RecordDict(), 1, "train")


# control.py
def test_a_run_whose_serverapp_has_died_is_failed(superlink, monkeypatch):
    later = now() + timedelta(hours=1)
    monkeypatch.setattr(sql_corestate, "now", lambda: later)
    assert superlink.state.get_tasks(statuses=[Status.PENDING]) == []
    status = superlink.state.get_run_status({superlink.run})[superlink.run]
    assert (status.status, status.sub_status) == (Status.FINISHED, SubStatus.FAILED)
    assert SubmittedRun(1, "finished:failed", status.details, "").died


# objects.py
def test_an_array_has_a_chunk_as_often_as_it_claims():
    array = Array("uint8", (8,), "numpy.ndarray", bytes(8))
    claims = array.deflate().replace(b"[0]", b"[0, 0, 0]")
    assert Array.inflate(claims, array.children).data == bytes(24)


class Waited(Exception):
    pass


# grid.py, supernode.py, superlink.py
def test_flower_waits_as_long_as_ever_between_two_looks(monkeypatch):
    def wait(seconds):
        raise Waited(seconds)

    for module in (start_client_internal, http_grid):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=wait, time=lambda: 0.0))
    node = SimpleNamespace(get_messages_legacy=lambda is_reply: [])
    with pytest.raises(Waited, match=r"^0\.5$"):
        start_client_internal._push_messages(node, None, None, None)
    grid = http_grid.HttpGrid(token="token")
    monkeypatch.setattr(grid, "push_messages", lambda messages: ["0" * 64])
    monkeypatch.setattr(grid, "pull_messages", lambda ids: [])
    with pytest.raises(Waited, match=r"^3$"):
        grid.send_and_receive([], timeout=60.0)


# superlink.py
def test_a_superlink_hands_out_a_message_before_its_parts(superlink):
    store, node = superlink.state.object_store, superlink.nodes[0]
    assert store.preregister(superlink.run, ObjectTree(object_id=superlink.asked[0])) == [superlink.asked[0]]
    request = PullMessagesRequest(node=Node(node_id=node))
    assert len(fleet_handlers.pull_messages(request, superlink.state, store).messages_list) == 1


# supernode.py
def test_an_executor_is_told_at_once_that_there_is_no_work(monkeypatch):
    node = OneMessage(InMemoryNodeState)
    look = node.state.get_tasks

    def just_before_work_comes(**which):
        found = look(**which)
        node.state.create_task(TaskType.CLIENT_APP, RUN_ID, "hash")
        return found

    monkeypatch.setattr(node.state, "get_tasks", just_before_work_comes)
    assert not runtime_handlers.acquire_task(REQUEST, node.state).token
    monkeypatch.undo()
    assert len(node.pending()) == 1


@pytest.fixture
def node():
    """Flower's SuperNode, whose ClientApp has fetched a message."""
    made = OneMessage(InMemoryNodeState)
    made.fetched()
    return made


def test_a_clientapp_that_fails_without_a_reply_is_waited_for(node):
    assert node.state.finish_task(node.task, SubStatus.FAILED, "It has died.")
    assert not node.replies()


def test_a_reply_is_handed_on_before_its_parts(node):
    reply = node.reply()
    assert node.replies() == [reply]


def test_the_end_of_a_task_that_nobody_has_ended_answers_a_later_message(node):
    node.new_task()
    node.forget(node.task)
    assert len(node.replies()) == 1


def test_a_message_whose_run_ends_while_it_comes_leaves_a_task_behind():
    node = OneMessage(InMemoryNodeState)
    assert receive_until_the_run_ends(node) is None
    assert len(node.pending()) == 1 and "f" * 64 in node.state.msg_store


# database.py
def test_a_token_is_in_the_database(superlink, tmp_path):
    task = superlink.state.create_task(TaskType.CLIENT_APP, superlink.run, "hash")
    token = superlink.state.claim_task(task)
    assert any(token.encode() in file.read_bytes() for file in tmp_path.glob("state.db*"))


# executor.py
def test_an_executor_starts_a_process_for_every_message_with_its_token_on_the_command_line(monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **more: started.append(command))
    for task in (1, 2):
        SubprocessExecutor().launch(clientapp(task))
        assert f"token-{task}" in started[-1]
    assert [command[0] for command in started] == ["flwr-clientapp"] * 2


EXECUTOR = """
import sys
from flwr.proto.runtime_pb2 import AcquireTaskResponse
from flwr.supercore.superexec import run_superexec as module

class Runtime:
    tasks = [AcquireTaskResponse(task={"task_id": 1, "type": "flwr-serverapp"}, token="token")]

    from_server_address = classmethod(lambda cls, **given: cls())
    AcquireTask = lambda self, request: self.tasks.pop() if self.tasks else AcquireTaskResponse()
    close = lambda self: None

module.RuntimeHttpClient = Runtime
"""
ENDS = {
    "Flower's": ("module.run_superexec('nowhere:1', insecure=True)", 0),
    "ours": (
        "from fedpart.flower.workarounds import executor\n"
        "executor.resolve_name = lambda name: lambda: module.run_superexec('nowhere:1', insecure=True)\n"
        "executor.main()",
        1,
    ),
}  # what runs an executor, and how many signals its app gets
SERVERAPP = """
import os, signal, sys, time
from pathlib import Path

folder, parent, numbers = Path(sys.argv[0]).parent, os.getppid(), {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
(folder / "begun").touch()
while os.getppid() == parent and not signal.sigpending():
    time.sleep(0.05)
(folder / "told").write_text(f"{len(signal.sigpending())} signals.")
"""


# executor.py
@pytest.mark.slow
@pytest.mark.parametrize("whose", ENDS)
def test_an_executor_that_is_asked_to_end_neither_tells_its_app_nor_waits_for_it_and_ours_does(
    tmp_path, whose
):
    run, signals = ENDS[whose]

    def until(there):
        end = time.monotonic() + PATIENCE
        while not there():
            assert time.monotonic() < end and (executor.poll() is None or (tmp_path / "begun").exists())
            time.sleep(0.05)

    app = tmp_path / TaskType.SERVER_APP
    app.write_text(f"#!{sys.executable}\n{SERVERAPP}")
    app.chmod(0o700)
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "FLWR_TELEMETRY_ENABLED": "0"}
    command = [sys.executable, "-c", EXECUTOR + run]
    executor = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        until((tmp_path / "begun").exists)
        executor.send_signal(signal.SIGTERM)
        assert executor.wait(PATIENCE) == 0
        until(lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text().endswith("."))
        assert (tmp_path / "told").read_text() == f"{signals} signals."
    finally:
        if executor.poll() is None:
            executor.kill()
            executor.wait()
