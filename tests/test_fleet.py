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

from simulations.deployment.fleet import guard_pushes

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
