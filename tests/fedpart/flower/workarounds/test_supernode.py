"""Our SuperNode: who dies is answered for, and a task is handed out with the whole of its message."""

import re
import threading

import httpx
import pytest
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supernode import start_client_internal
from one_message import REQUEST, OneMessage, receive_until_the_run_ends

from fedpart.flower.workarounds import supernode
from fedpart.flower.workarounds.objects import RUN_ID
from fedpart.flower.workarounds.protocol import SHARE, SHORTEST, pause
from fedpart.flower.workarounds.supernode import State, acquire_task, look_more_often, tell_refusal


@pytest.mark.parametrize("fetched", [True, False])
def test_a_clientapp_that_fails_without_a_reply_is_answered_for(fetched):
    node = OneMessage(State)
    if fetched:
        node.fetched()
    assert node.state.finish_task(node.task, SubStatus.FAILED, "It has died.")
    (reply,) = node.replies()
    assert reply.error.code == ErrorCode.CLIENT_APP_CRASHED
    assert reply.metadata.reply_to_message_id == node.message.metadata.message_id


@pytest.fixture
def node():
    """Whose ClientApp has fetched the message."""
    made = OneMessage(State)
    made.fetched()
    return made


@pytest.mark.parametrize("fails", [False, True])
def test_a_reply_is_handed_on_when_all_of_it_is_there_and_stays_the_only_one(node, fails):
    reply = node.reply()
    assert not node.replies()
    node.put(reply)
    if fails:
        assert node.state.finish_task(node.task, SubStatus.FAILED, "It has raised.")
    assert node.replies() == [reply]


def test_a_clientapp_that_dies_within_its_reply_is_answered_for(node):
    part = node.reply()
    assert not node.replies()
    assert node.state.finish_task(node.task, SubStatus.FAILED, "It has died.")
    (reply,) = node.replies()
    assert reply.error.code == ErrorCode.CLIENT_APP_CRASHED
    assert part.metadata.message_id not in node.state.object_store


def test_the_end_of_a_task_is_not_that_of_the_next_message():
    node = OneMessage(State)  # its own message has been answered and is gone; the next one is here
    node.new_task()
    assert node.state.finish_task(node.task, SubStatus.FAILED, "It has raised.")
    assert not node.replies()
    node.fetched()


@pytest.mark.parametrize("later", [True, False])
def test_a_task_that_nobody_has_ended_ends_no_later_message(node, later):
    if later:
        node.new_task()
    node.forget(node.task)
    assert len(node.replies()) == (not later)


def test_a_task_is_handed_out_when_its_message_is_whole(monkeypatch):
    monkeypatch.setattr(supernode, "HOLD_SECONDS", 0.05)
    node = OneMessage(State)
    task = node.state.create_task("flwr-clientapp", RUN_ID, "hash")
    with node.state.receiving:
        assert not acquire_task(REQUEST, node.state).token
    found = acquire_task(REQUEST, node.state)
    assert found.task.task_id == task and found.token


def test_an_executor_that_asks_gets_the_task_that_comes(monkeypatch):
    monkeypatch.setattr(supernode, "HOLD_SECONDS", 600.0)
    node, asked, found = OneMessage(State), threading.Event(), []

    def look(*given):
        answer = own(*given)
        asked.set()
        return answer

    own = supernode._look
    monkeypatch.setattr(supernode, "_look", look)
    executor = threading.Thread(target=lambda: found.append(acquire_task(REQUEST, node.state)))
    executor.start()
    assert asked.wait(60.0)
    task = node.state.create_task("flwr-clientapp", RUN_ID, "hash")
    node.state.work.set()
    executor.join(60.0)
    assert found[0].task.task_id == task


@pytest.fixture
def looking(monkeypatch):
    """Flower's module, after whose look for messages ours comes."""
    for name in ("_pull_and_store_message", "time"):
        monkeypatch.setattr(start_client_internal, name, getattr(start_client_internal, name))
    look_more_often()
    return start_client_internal


def test_a_message_whose_run_ends_while_it_comes_leaves_nothing_behind(looking):
    node = OneMessage(State)
    before = set(node.state.msg_store)
    assert receive_until_the_run_ends(node) is None
    assert not node.pending() and set(node.state.msg_store) == before and not node.replies()
    assert "f" * 64 not in node.state.object_store


def test_a_reply_is_sent_though_no_message_comes(node, looking):
    """As if Flower had sent another in its place before, and waited for a message since."""
    given = {"receive": lambda: None, "object_store": node.state.object_store, "node_config": {}}
    unused = "get_run", "get_fab", "pull_object", "confirm_message_received", "trusted_entities"
    given |= dict.fromkeys(unused)

    def pulled():
        return looking._pull_and_store_message(state=node.state, **given)

    assert pulled() is None
    reply = node.reply()
    assert pulled() is None, "it has not come yet"
    node.put(reply)
    assert pulled() == RUN_ID
    assert node.replies() == [reply] and pulled() is None


def test_a_pause_is_a_share_of_what_has_passed_within_bounds():
    assert pause(0.0, 3.0) == SHORTEST
    assert pause(10.0, 3.0) == SHARE * 10.0
    assert pause(1e6, 3.0) == 3.0


@pytest.mark.parametrize(("detail", "why"), [("Unknown.", r"Unknown\."), (None, "status 401")])
def test_a_supernode_that_is_refused_says_why_and_fails(monkeypatch, detail, why):
    said, left = [], []
    monkeypatch.setattr(httpx.Client, "send", httpx.Client.send)
    monkeypatch.setattr(supernode, "log", lambda level, text, *values: said.append(text % values))
    monkeypatch.setattr(supernode, "leave", left.append)
    tell_refusal()
    refuse = httpx.MockTransport(lambda _: httpx.Response(401, json={"detail": detail}))
    httpx.Client(transport=refuse).post("https://superlink")
    assert left == [1] and len(said) == 1 and re.search(f"key has .* clock has .*: {why}$", said[0])
    accept = httpx.MockTransport(lambda _: httpx.Response(500))
    httpx.Client(transport=accept).post("https://superlink")
    assert left == [1]
