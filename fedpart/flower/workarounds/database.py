"""The SuperLink's database: what Flower leaves wrong in it is put right here, and nowhere else.

The faults, none of which any call of Flower's mends. It takes what was first said of an object for the truth:
a node that foresees a part of the server's next message, or of another node's answer, can announce it with
parts that nobody has, and the message itself is refused. Here the server is believed, and in the end the
object's own head, of which its name is a hash. It sends a message once, whether it arrives or not. It keeps
the token of a task as it is. And its transactions begin where they first write: what they have read may have
changed by then, and of many at a time some fail after five seconds, which ends a ServerApp if it was its sign
of life."""

import hashlib
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.supercore.corestate import sql_corestate
from flwr.supercore.inflatable.inflatable_object import (
    get_object_head_values_from_object_content,
    get_object_id,
    iterate_object_tree,
)
from sqlalchemy import column, delete, insert, select, table, update
from sqlalchemy.orm import Session

from fedpart.checks import require
from fedpart.flower.workarounds.protocol import message, patch

_UNCONFIRMED = """
    UPDATE {table} SET delivered_at = ''
    WHERE delivered_at != '' AND delivered_at < ? AND message_id IN (SELECT object_id FROM objects)"""
_UNANSWERED = " AND message_id NOT IN (SELECT reply_to_message_id FROM message_res)"
STORED = table("objects", *map(column, ("object_id", "content", "is_available", "ref_count")))
CHILDREN = table("object_children", *map(column, ("parent_id", "child_id")))


def correct(store: Any, tree: Any, believed: bool = True) -> None:
    """Give the objects of ``tree`` that somebody else has announced the children that they have in it."""
    with store._mutation_session() as session:
        for node in reversed(list(iterate_object_tree(tree))):
            query = select(STORED.c.is_available).where(STORED.c.object_id == node.object_id)
            available = session.scalar(query)
            if available is None or (available and not believed):
                continue
            children = {child.object_id for child in node.children}
            of_node = CHILDREN.c.parent_id == node.object_id
            had = set(session.scalars(select(CHILDREN.c.child_id).where(of_node)))
            session.execute(delete(CHILDREN).where(of_node, CHILDREN.c.child_id.in_(had - children)))
            _count(session, had - children, -1)
            for child in children - had:
                if child not in store:
                    session.execute(insert(STORED).values(object_id=child, content=b""))
                session.execute(insert(CHILDREN).values(parent_id=node.object_id, child_id=child))
            _count(session, children - had, 1)


def _count(session: Session, objects: set[str], by: int) -> None:
    """Change how many parents the objects have."""
    more = {"ref_count": STORED.c.ref_count + by}
    session.execute(update(STORED).where(STORED.c.object_id.in_(objects)).values(more))


def check_children(request: Any, store: Any, most: int) -> None:
    """Let an object have the children that its own head says, whatever has been announced."""
    id, content = request.object_id, request.object_content
    try:
        _, children, _ = get_object_head_values_from_object_content(content)
    except ValueError as error:
        raise ValueError("The object does not begin with a head.") from error
    require(len(children) <= most, f"An object has more than {most} parts.")
    with store.session() as session:
        announced = set(session.scalars(select(CHILDREN.c.child_id).where(CHILDREN.c.parent_id == id)))
    if announced != set(children) and id in store:
        require(get_object_id(content) == id, "The object is not the one of that name.")
        tree = message("ObjectTree")
        correct(store, tree(object_id=id, children=[tree(object_id=child) for child in children]))


def redeliver(database: str | Path, before: datetime) -> int:
    """Let messages and replies be fetched again whose receipt has not been confirmed; how many these are.

    Flower notes that a message is delivered before its answer leaves, and sends it once only: a SuperLink
    that ends in between loses it, and the round waits until it times out. A message has its objects here
    until it is confirmed. Should a node have it all the same and reply twice, Flower refuses the second.
    """
    when = (before.astimezone(UTC).isoformat(),)
    with closing(sqlite3.connect(database, timeout=60.0)) as connection, connection:
        messages = connection.execute(_UNCONFIRMED.format(table="message_ins") + _UNANSWERED, when)
        replies = connection.execute(_UNCONFIRMED.format(table="message_res"), when)
        return messages.rowcount + replies.rowcount


def take_turns() -> None:
    """Let the transactions of this process's SuperLink, whichever they are, wait for each other."""
    mixin: Any = sql_corestate
    begin, turn = mixin.SqlMixin.session, threading.RLock()

    @contextmanager
    def session(state: Any) -> Iterator[Session]:
        with turn, begin(state) as begun:
            yield begun

    patch(mixin.SqlMixin, session=session)


def hide_from_database() -> None:
    """Let this process's SuperLink keep digests of tasks' tokens: who has one can act as the task's app."""
    module: Any = sql_corestate
    state, made = module.SqlCoreState, threading.local()
    claim, find = state.claim_task, state.get_task_by_token

    def token_hex(size: int) -> str:
        made.token = secrets.token_hex(size)
        return digest(made.token)

    def claim_task(self: Any, task_id: int) -> str | None:
        return made.token if claim(self, task_id) else None

    def get_task_by_token(self: Any, token: str) -> Any:
        return find(self, digest(token))

    patch(module, secrets=SimpleNamespace(token_hex=token_hex))
    patch(state, claim_task=claim_task, get_task_by_token=get_task_by_token)


def digest(token: str) -> str:
    """Of so many random bits, SHA-256 tells nothing."""
    return hashlib.sha256(token.encode()).hexdigest()
