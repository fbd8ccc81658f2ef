"""What SuperNodes may push to a SuperLink.

The faults: Flower knows who pushes, but believes what the message says of its sender and its times. And it
takes what was first said of an object for the truth: a node that foresees a part of the server's next
message can announce it with parts that it does not have, and the message itself would be refused.

The tests: ``test_faults.py::test_a_node_may_answer_in_the_name_of_another``,
``test_a_time_that_is_no_number_makes_every_later_look_fail`` there, and, by the store's own refusal,
``test_fleet.py::test_the_server_is_believed_about_objects_that_a_node_has_announced_with_other_parts``.
"""

from __future__ import annotations

import math
from typing import Any

from fastapi import HTTPException
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import LinkState, SqlLinkState
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.state.schema.objectstore_models import ObjectChild, StoredObject
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session


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


def guard_instructions() -> None:
    """Let the Runtime API of this process's SuperLink believe the ServerApp about what it pushes."""
    push = runtime_handlers.push_messages

    def corrected(request: Any, state: LinkState, task: Any) -> Any:
        if isinstance(state, SqlLinkState) and isinstance(state.object_store, SqlObjectStore):
            for tree in request.message_object_trees:
                correct(state.object_store, tree)
        return push(request, state, task)

    runtime_handlers.push_messages = corrected


def correct(store: SqlObjectStore, tree: ObjectTree) -> None:
    """Give the objects of ``tree`` that somebody else has announced the children that they have in it."""
    with store._mutation_session() as session:
        for node in reversed(list(iterate_object_tree(tree))):
            if node.object_id not in store:
                continue
            children = {child.object_id for child in node.children}
            of_node = ObjectChild.parent_id == node.object_id
            had = set(session.scalars(select(ObjectChild.child_id).where(of_node)))
            session.execute(delete(ObjectChild).where(of_node, ObjectChild.child_id.in_(had - children)))
            _count(session, had - children, -1)
            for child in children - had:
                if child not in store:
                    session.execute(insert(StoredObject).values(object_id=child, content=b""))
                session.execute(insert(ObjectChild).values(parent_id=node.object_id, child_id=child))
            _count(session, children - had, 1)


def _count(session: Session, objects: set[str], by: int) -> None:
    """Change how many parents the objects have."""
    more = {"ref_count": StoredObject.ref_count + by}
    session.execute(update(StoredObject).where(StoredObject.object_id.in_(objects)).values(more))


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
