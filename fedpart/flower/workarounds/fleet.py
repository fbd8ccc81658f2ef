"""What SuperNodes may push to a SuperLink.

The faults: Flower knows who pushes, but believes what the message says of its sender and its times. It writes
down every part of a message, however many there are, while nobody else can write: 10,000 keep it for minutes.
It opens a session for whatever is pushed, also for what answers nothing. And it answers with status 500 what
nobody can read, or what belongs to no run.

Here a node pushes the answer to a message that it was sent, of so many parts as follow from the run's own
messages. If that is refused, the server gets an error in its place, so that the round need not wait.
"""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import HTTPException
from flwr.app import Error, MessageType, Metadata
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.inflatable.inflatable_object import get_object_tree, iterate_object_tree
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from fedpart.checks import require
from fedpart.flower.workarounds.database import check_children, correct
from fedpart.flower.workarounds.objects import OBJECTS, UNREADABLE, identify, make_message
from fedpart.flower.workarounds.protocol import message, patch
from fedpart.updates.errors import brief

KINDS = (MessageType.TRAIN, MessageType.EVALUATE, MessageType.QUERY)  # each alone, or with ".name"
DEPTH = 8  # of a message's tree; ours have 5
TIMES = 4  # as many parts as the server's largest message, which may have numbers of a quarter of the width
MOST = 1000  # parts, while nobody knows the run's messages: this process has begun after they were sent
PUSHES = 10  # of the same answer; its node has not heard that it has come
KEPT = 10_000  # messages of which it is known who has answered them


class Pushes:
    """What has been pushed to this SuperLink."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._most: dict[int, int] = {}  # parts, by the number of the run
        self._answers: dict[str, tuple[str, int]] = {}  # by the message: its answer, how often it was pushed

    def instructed(self, run: int, tree: Any) -> None:
        """The server of a run has sent a message with this tree."""
        most = OBJECTS + TIMES * sum(1 for _ in iterate_object_tree(tree))
        with self._lock:
            self._most[run] = max(most, self._most.get(run, 0))

    def most(self, run: int) -> int:
        """Parts that an answer in a run may have."""
        return self._most.get(run, MOST)

    def is_first(self, asked: str, answer: str) -> bool:
        """Note that an answer to a message is pushed; whether it is not another than the first one."""
        with self._lock:
            first, times = self._answers.get(asked, (answer, 0))
            if times >= PUSHES:
                raise HTTPException(429, "This message has been answered too often.")
            if asked not in self._answers and len(self._answers) >= KEPT:
                del self._answers[next(iter(self._answers))]
            self._answers[asked] = first, times + 1
            return first == answer


def guard_pushes(pushes: Pushes) -> None:
    """Let the Fleet API of this process's SuperLink refuse, with status 400, what is no node's answer."""
    handlers: Any = fleet_handlers
    push, push_object, abort = handlers.push_messages, handlers.push_object, handlers.check_abort

    def checked(request: Any, state: Any) -> Any:
        with _refusing():
            check_push(request)
            asked, (tree,) = _asked(request, state), request.message_object_trees
            wanted = asked is not None and pushes.is_first(asked.message_id, tree.object_id)
            try:
                check_answer(request, asked, pushes.most(request.messages_list[0].metadata.run_id))
                if not wanted:
                    return message("PushMessagesResponse")()  # as Flower answers what is late
                correct(state.object_store, tree, believed=False)
                return push(request, state)
            except ValueError as error:
                if asked is not None and wanted:
                    answer_for(asked, state, str(error))
                raise

    def checked_object(request: Any, state: Any) -> Any:
        with _refusing():
            check_children(request, state.object_store, pushes.most(request.run_id))
            return push_object(request, state)

    def checked_run(run_id: int, statuses: list[str], state: Any) -> str | None:
        if run_id not in state.get_run_status({run_id}):
            raise HTTPException(400, f"There is no run {run_id}.")
        return abort(run_id, statuses, state)  # type: ignore[no-any-return]

    patch(handlers, push_messages=checked, push_object=checked_object, check_abort=checked_run)


def guard_instructions(pushes: Pushes) -> None:
    """Let the Runtime API of this process's SuperLink believe the ServerApp about what it pushes."""
    handlers: Any = runtime_handlers
    push, push_object = handlers.push_messages, handlers.push_object

    def corrected(request: Any, state: Any, task: Any) -> Any:
        for tree in request.message_object_trees:
            pushes.instructed(task.run_id, tree)
            correct(state.object_store, tree)
        return push(request, state, task)

    def checked_object(request: Any, state: Any, task: Any) -> Any:
        check_children(request, state.object_store, len(request.object_content))
        return push_object(request, state, task)

    patch(handlers, push_messages=corrected, push_object=checked_object)


def check_push(request: Any) -> None:
    """Refuse a push of anything but one message of the node's own."""
    messages, trees = request.messages_list, request.message_object_trees
    single = len(messages) == len(trees) == 1
    require(single, "A node pushes one message with one tree of objects at a time.")
    metadata = messages[0].metadata
    require(metadata.src_node_id == request.node.node_id, "A node pushes messages of its own only.")
    require(trees[0].object_id == metadata.message_id, "The tree of objects is not that of the message.")
    times = (metadata.created_at, metadata.ttl, *request.clientapp_runtime_list)
    # the database keeps NaN as nothing, and every later look fails
    require(all(map(math.isfinite, times)), "The times of a message are finite numbers.")


def check_answer(request: Any, asked: Metadata | None, most: int) -> None:
    """Refuse what is no answer to a message, or has too many parts."""
    (answer,), (tree,) = request.messages_list, request.message_object_trees
    kind = answer.metadata.message_type
    fits = kind.partition(".")[0] in KINDS and (asked is None or kind == asked.message_type)
    require(fits, f"{brief(repr(kind))} is not the type of a message, or not of the one it answers.")
    require(not answer.content.ByteSize(), "The content of a message is pushed as objects.")
    too_many = f"The message has more than the {most} parts that an answer of this run may have."
    ahead, parts = [(tree, 1)], 1
    while ahead:
        node, depth = ahead.pop()
        parts += len(node.children)
        require(parts <= most, too_many)
        require(depth <= DEPTH, f"The parts of a message lie within each other more than {DEPTH} deep.")
        ahead += [(child, depth + 1) for child in node.children]


def answer_for(asked: Metadata, state: Any, why: str) -> None:
    """Give the server an error in place of an answer that is refused; nothing, if it has an answer."""
    moment = time.time()
    ids = asked.run_id, "", asked.dst_node_id, SUPERLINK_NODE_ID, asked.message_id
    left = asked.created_at + asked.ttl - moment
    about = Metadata(*ids, asked.group_id, moment, left, asked.message_type)
    answer = make_message(about, error=Error(UNREADABLE, f"the SuperLink has refused it: {why}"))
    identify(answer, answer.object_id)
    session = state.start_session(asked.run_id)
    _, missing = state.store_message_and_object_tree(answer, get_object_tree(answer), session)
    for id in missing:
        state.store_object(asked.run_id, session, id, answer.deflate())


def _asked(request: Any, state: Any) -> Metadata | None:
    """The message that is answered; None: nobody waits for it any more."""
    metadata = request.messages_list[0].metadata
    require(metadata.reply_to_message_id, "A node pushes answers only.")
    if (row := state.get_valid_message_ins(metadata.reply_to_message_id)) is None:
        return None
    run, node = (row[name] % 2**64 for name in ("run_id", "dst_node_id"))
    require(node == request.node.node_id, "A node answers messages to itself only.")
    require(run == metadata.run_id, "The answer belongs to another run than the message.")
    rest = (row[name] for name in ("group_id", "created_at", "ttl", "message_type"))
    return Metadata(run, row["message_id"], SUPERLINK_NODE_ID, node, "", *rest)


@contextmanager
def _refusing() -> Iterator[None]:
    """What does not fit becomes status 400."""
    try:
        yield
    except (ValueError, NoObjectInStoreError) as error:
        raise HTTPException(400, str(error)) from error
