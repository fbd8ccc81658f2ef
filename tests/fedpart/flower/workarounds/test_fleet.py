"""What a registered node may push to the SuperLink: nothing that ends the run, nothing in another's name."""

import math

import numpy as np
import pytest
from fastapi import HTTPException
from flwr.app import Array, ArrayRecord
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_object_tree, iterate_object_tree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.superlink.routers.fleet.router import fleet_push_messages
from flwr.superlink.servicer.fleet import fleet_handlers

from fedpart.flower.workarounds.fleet import correct, guard_pushes

NODE, ROOT = 7, "ab" * 32


def pushed(tree=ROOT, count=1, runtime=1.0, **changes):
    about = {"message_id": ROOT, "src_node_id": NODE, "created_at": 1.8e9, "ttl": 60.0, **changes}
    return PushMessagesRequest(
        node=Node(node_id=NODE),
        messages_list=[Message(metadata=Metadata(**about))] * count,
        message_object_trees=[ObjectTree(object_id=tree)] * count,
        clientapp_runtime_list=[runtime],
    )


@pytest.fixture
def taken(monkeypatch):
    """What reaches Flower's own handler, behind the guard."""
    requests = []

    def handler(request, state):
        requests.append(request)
        return PushMessagesResponse()

    monkeypatch.setattr(fleet_handlers, "push_messages", handler)
    guard_pushes()
    return requests


def test_what_honest_nodes_push_is_taken(taken):
    assert fleet_push_messages(pushed(), None) == PushMessagesResponse()
    assert taken == [pushed()]


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


@pytest.mark.parametrize("pushed_before", [False, True])
def test_the_server_is_believed_about_objects_that_a_node_has_announced_with_other_parts(
    tmp_path, pushed_before
):
    part = Array(np.arange(3.0))
    record, message = ArrayRecord({"w": part}), "ab" * 32
    theirs = get_object_tree(record)
    store = SqlObjectStore(str(tmp_path / "objects.db"))
    store.initialize()
    foreseen, absent = record.object_id, "cd" * 32
    false = ObjectTree(
        object_id="ef" * 32,
        children=[ObjectTree(object_id=foreseen, children=[ObjectTree(object_id=absent)])],
    )
    store.preregister(1, false)
    if pushed_before:
        store.put(foreseen, record.deflate())
    tree = ObjectTree(object_id=message, children=[theirs])
    with pytest.raises(ValueError, match="different children"):
        store.preregister(1, tree)
    correct(store, tree)
    correct(store, tree)
    wanted = {node.object_id for node in iterate_object_tree(tree)}
    assert set(store.preregister(1, tree)) == wanted - ({foreseen} if pushed_before else set())
    assert store.get_object_tree(message) == tree
    store.delete("ef" * 32)  # what the node has announced
    assert store.get_object_tree(message) == tree, "the message still has all of its parts"
    store.delete(message)
    store.delete(absent)
    assert len(store) == 0
