"""A SuperLink that answers who asks for messages when there are some.

The faults: Flower's answers at once that there is nothing, and is asked again and again. And it hands out a
message before the parts that it consists of have come: who fetches it then waits a second for the first that
is not there.

The tests: ``test_faults.py::test_a_superlink_hands_out_a_message_before_its_parts``, and
``test_flower_waits_as_long_as_ever_between_two_looks`` there.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import Message
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import LinkState
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

HOLD_SECONDS = 2.0  # that a question may take; as long an end of the SuperLink may wait for its answer
PARTS_SECONDS = 10.0  # that the parts of a message may take, or nobody waits for them
MOST_HELD = 20  # questions at a time, of the 40 that a SuperLink works at
Whose = tuple[int, int]  # a node's number and, of the server, a run's


class Arrivals:
    """Messages and replies on their way, by whom they are for.

    A message is whole when the object has come that has its id, for that is sent last.
    """

    def __init__(self) -> None:
        self._lock, self._on_way = threading.Lock(), dict[str, tuple[Whose, float]]()
        self._came: defaultdict[Whose, threading.Event] = defaultdict(threading.Event)
        self._places = threading.Semaphore(MOST_HELD)

    def announced(self, messages: Iterable[Message]) -> None:
        """The objects of these are to come."""
        now = time.monotonic()
        with self._lock:
            recent = {id: one for id, one in self._on_way.items() if now - one[1] < PARTS_SECONDS}
            self._on_way = recent | {one.metadata.message_id: (whose(one), now) for one in messages}

    def came(self, object_id: str) -> None:
        """An object is there."""
        with self._lock:
            if (found := self._on_way.pop(object_id, None)) is not None:
                self._came[found[0]].set()

    def wait(self, who: Whose) -> bool:
        """Wait until something whole has come since the last call; two seconds at most, not where many wait.

        Returns:
            Whether it is a good moment to look: nothing is on its way of which a part would be found.
        """
        with self._lock:
            event = self._came[who]
        if self._places.acquire(blocking=False):
            try:
                event.wait(HOLD_SECONDS)
            finally:
                self._places.release()
        with self._lock:
            event.clear()
            now = time.monotonic()
            return not any(one == who and now - begun < PARTS_SECONDS for one, begun in self._on_way.values())

    def more(self, who: Whose) -> None:
        """There may be more than what has been handed out."""
        with self._lock:
            self._came[who].set()


def whose(message: Message) -> Whose:
    """For whom it is: a node, or the ServerApp of a run."""
    to, run = message.metadata.dst_node_id, message.metadata.run_id
    return to, run if to == SUPERLINK_NODE_ID else 0


def for_servers(messages: Iterable[Message]) -> list[Message]:
    """Those that a node may send: one to another node, which is refused, keeps nobody from being answered."""
    return [message for message in messages if message.metadata.dst_node_id == SUPERLINK_NODE_ID]


def hold_questions() -> None:
    """Let this process's SuperLink answer SuperNodes and ServerApps as :class:`Arrivals` does."""
    arrivals, fleet, runtime = Arrivals(), fleet_handlers, runtime_handlers
    handlers: Any
    for handlers in (fleet, runtime):
        may_announce = for_servers if handlers is fleet else list
        handlers.push_messages = _before(handlers.push_messages, _announces(arrivals, may_announce))
        handlers.push_object = _after(handlers.push_object, lambda one: arrivals.came(one.object_id))
    nodes, server = fleet.pull_messages, runtime.pull_messages

    def to_node(request: PullMessagesRequest, **more: Any) -> PullMessagesResponse:
        who = request.node.node_id, 0
        if not arrivals.wait(who):
            return PullMessagesResponse()
        found = nodes(request, **more)
        if found.messages_list:
            arrivals.more(who)  # it is one at a time
        return found

    def to_server(request: PullAppMessagesRequest, state: LinkState, task: Task) -> PullAppMessagesResponse:
        arrivals.wait((SUPERLINK_NODE_ID, task.run_id))
        return server(request, state, task)

    handlers = fleet
    handlers.pull_messages = to_node
    handlers = runtime
    handlers.pull_messages = to_server


def _announces(
    arrivals: Arrivals, which: Callable[[Iterable[Message]], list[Message]]
) -> Callable[[Any], None]:
    return lambda request: arrivals.announced(which(request.messages_list))


def _before(handler: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
    def noted(request: Any, *given: Any, **more: Any) -> Any:
        note(request)
        return handler(request, *given, **more)

    return noted


def _after(handler: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
    def noted(request: Any, *given: Any, **more: Any) -> Any:
        answer = handler(request, *given, **more)
        note(request)
        return answer

    return noted
