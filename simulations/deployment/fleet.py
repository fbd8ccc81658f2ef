"""What SuperNodes may push to a SuperLink: Flower knows who pushes, but believes what the message says."""

from __future__ import annotations

import math

from fastapi import HTTPException
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.server.superlink.linkstate import LinkState
from flwr.superlink.servicer.fleet import fleet_handlers


def guard_pushes() -> None:
    """Let the Fleet API of this process's SuperLink refuse what :func:`check_push` does, with status 400."""
    push = fleet_handlers.push_messages

    def checked(request: PushMessagesRequest, state: LinkState) -> PushMessagesResponse:
        try:
            check_push(request)
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        return push(request, state)

    fleet_handlers.push_messages = checked


def check_push(request: PushMessagesRequest) -> None:
    """Refuse a message in the name of another node or of the server, or that cannot be read again.

    Flower's database keeps NaN as nothing, and every later look at such a message fails, which ends the run.

    Raises:
        ValueError: one sentence.
    """
    messages, trees = request.messages_list, request.message_object_trees
    if len(messages) != 1 or len(trees) != 1:
        raise ValueError("A node pushes one message with one tree of objects at a time.")
    metadata = messages[0].metadata
    if metadata.src_node_id != request.node.node_id:
        raise ValueError("A node pushes messages of its own only.")
    if trees[0].object_id != metadata.message_id:
        raise ValueError("The tree of objects is not that of the message.")
    times = (metadata.created_at, metadata.ttl, *request.clientapp_runtime_list)
    if not all(map(math.isfinite, times)):
        raise ValueError("The times of a message are finite numbers.")
