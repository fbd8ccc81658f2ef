"""What a registered node may push to the SuperLink: nothing that ends the run, nothing in another's name."""

import math

import pytest
from fastapi import HTTPException
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.superlink.routers.fleet.router import fleet_push_messages
from flwr.superlink.servicer.fleet import fleet_handlers
from hostile_node import broad, deep
from superlink_state import SuperLink

from fedpart.flower.workarounds.fleet import DEPTH, MOST, PUSHES, Pushes, guard_pushes
from fedpart.flower.workarounds.objects import OBJECTS, UNREADABLE, claim_identity

NODE, ROOT = 7, "ab" * 32


def pushed(tree=ROOT, count=1, runtime=1.0, **changes):
    about = {"message_id": ROOT, "src_node_id": NODE, "created_at": 1.8e9, "ttl": 60.0, **changes}
    return PushMessagesRequest(
        node=Node(node_id=NODE),
        messages_list=[Message(metadata=Metadata(**about))] * count,
        message_object_trees=[ObjectTree(object_id=tree)] * count,
        clientapp_runtime_list=[runtime],
    )


def keep_handlers(monkeypatch):
    for name in ("push_messages", "push_object", "check_abort"):
        monkeypatch.setattr(fleet_handlers, name, getattr(fleet_handlers, name))


@pytest.fixture
def taken(monkeypatch):
    """What reaches Flower's own handler, behind the guard."""
    requests = []

    def handler(request, state):
        requests.append(request)
        return PushMessagesResponse()

    keep_handlers(monkeypatch)
    monkeypatch.setattr(fleet_handlers, "push_messages", handler)
    guard_pushes(Pushes())
    return requests


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(({name: value}, "finite") for name in ("created_at", "ttl") for value in (math.nan, math.inf)),
        ({"runtime": math.nan}, "finite"),
        ({"src_node_id": NODE + 1}, "of its own"),
        ({"src_node_id": SUPERLINK_NODE_ID}, "of its own"),
        ({"tree": "cd" * 32}, "not that of the message"),
        ({"count": 0}, "one message"),
        ({"count": 2}, "one message"),
    ],
)
def test_the_rest_is_refused(taken, changes, says):
    with pytest.raises(HTTPException, match=says) as refused:
        fleet_push_messages(pushed(**changes), None)
    assert refused.value.status_code == 400 and taken == []


@pytest.fixture
def pushes():
    return Pushes()


@pytest.fixture
def superlink(tmp_path, monkeypatch, pushes):
    """Behind the guard."""
    keep_handlers(monkeypatch)
    guard_pushes(pushes)
    yield SuperLink(tmp_path)
    claim_identity()


def replies(superlink, node=0):
    return superlink.state.get_message_res({superlink.asked[node]}, superlink.run)


def test_an_answer_is_taken_once_and_may_be_pushed_again(superlink):
    for _ in range(PUSHES):
        assert superlink.push(superlink.asked[0]).objects_to_push == ["a" * 64]
    with pytest.raises(HTTPException) as refused:
        superlink.push(superlink.asked[0])
    assert refused.value.status_code == 429
    assert len(replies(superlink)) == 1 and len(superlink.state.object_store) == 1


def test_another_answer_to_the_same_message_costs_nothing(superlink):
    superlink.push(superlink.asked[0])
    before = superlink.count("object_push_sessions")
    again = superlink.push(superlink.asked[0], deep(3).children[0])
    assert not again.objects_to_push
    assert superlink.count("object_push_sessions") == before and len(superlink.state.object_store) == 1


@pytest.mark.slow
def test_what_comes_too_late_is_no_fault_and_costs_nothing(superlink):
    assert superlink.push("f" * 64) == PushMessagesResponse()
    for changes in ({"kind": ""}, {"tree": broad(MOST + 1)}):
        with pytest.raises(HTTPException) as refused:
            superlink.push("f" * 64, **changes)
        assert refused.value.status_code == 400
    assert superlink.count("object_push_sessions") == 0 == len(superlink.state.object_store)


def of_parts(*ids):
    return ObjectTree(object_id="a" * 64, children=[ObjectTree(object_id=id) for id in ids])


ABUSES = {
    "10,000 children": ({"tree": broad(10_000)}, f"more than the {MOST} parts"),
    "a chain": ({"tree": deep(DEPTH + 1)}, f"more than {DEPTH} deep"),
    "a name": ({"tree": of_parts("b")}, "Invalid object"),
    "twice": ({"tree": of_parts("b" * 64, "b" * 64)}, "duplicate"),
    "itself": ({"tree": of_parts("a" * 64)}, "children"),
    "no type": ({"kind": ""}, "'' is not the type of a message"),
    "unknown type": ({"kind": "unknown"}, "'unknown' is not the type"),
    "another type": ({"kind": "evaluate"}, "or not of the one it answers"),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ABUSES)
def test_who_pushes_what_nobody_can_read_is_refused_and_named_and_the_round_goes_on(superlink, kind):
    changes, says = ABUSES[kind]
    with pytest.raises(HTTPException, match=says) as refused:
        superlink.push(superlink.asked[0], **changes)
    assert refused.value.status_code == 400
    (reply,) = replies(superlink)
    assert reply.error.code == UNREADABLE and says in reply.error.reason
    assert superlink.state.object_store.get(reply.metadata.message_id) == reply.deflate()
    assert len(superlink.state.object_store) == 1, "only the error's"
    assert not superlink.push(superlink.asked[0]).objects_to_push, "it has answered"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("asked", "changes", "says"),
    [(0, {"run_id": 5}, "another run"), (1, {}, "messages to itself"), (None, {}, "answers only")],
)
def test_what_answers_no_message_of_the_node_leaves_no_trace(superlink, asked, changes, says):
    with pytest.raises(HTTPException, match=says) as refused:
        superlink.push("" if asked is None else superlink.asked[asked], **changes)
    assert refused.value.status_code == 400
    assert superlink.count("object_push_sessions") == 0 == len(superlink.state.object_store)
    assert not replies(superlink, 0) and not replies(superlink, 1)


@pytest.mark.slow
def test_an_answer_has_as_many_parts_as_follow_from_the_messages_of_its_run(superlink, pushes):
    pushes.instructed(superlink.run, broad(12))
    pushes.instructed(superlink.run, broad(3))
    pushes.instructed(superlink.run + 1, broad(50))
    most = OBJECTS + 4 * 12
    superlink.push(superlink.asked[0], broad(most))
    assert len(superlink.state.object_store) == most
    with pytest.raises(HTTPException, match=f"the {most} parts"):
        superlink.push(superlink.asked[1], broad(most + 1), node=1)
