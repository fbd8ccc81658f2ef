"""The SuperLink, closed to all but the operator: ``python -m fedpart.flower.workarounds.superlink``.

The faults: Flower's SuperLink lets everybody who reaches it submit a run, which is code that ServerApp and
clients execute. It answers at once that there is nothing, and is asked again and again. And it hands out a
message before the parts that it consists of have come: who fetches it then waits a second for the first that
is not there.

Here a call of the Control API needs the operator's token. What nodes push is checked besides, see
:mod:`.fleet`, and how much everybody asks, see ``door.py``. Who asks for messages is answered when there are
some. A SuperLink that is started again sends the messages once more that were on their way when it ended.
"""

import argparse
import asyncio
import hmac
import importlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from flwr.common.constant import ACCESS_TOKEN_KEY, SUPERLINK_NODE_ID
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from fedpart.flower.workarounds.database import hide_from_database, redeliver, take_turns
from fedpart.flower.workarounds.door import open_door
from fedpart.flower.workarounds.fleet import Pushes, guard_instructions, guard_pushes
from fedpart.flower.workarounds.metrics import serve
from fedpart.flower.workarounds.protocol import message, patch

REDELIVERY_SECONDS = 30.0  # after the start; SuperNodes have tried again before, and confirmed what they have
PARTS_SECONDS = 10.0  # that the parts of a message may take, or nobody waits for them
KEPT_SECONDS = 60.0  # that it is known which objects have come, so long may an announcement take
SURE_SECONDS = 60.0  # that it is believed that nothing has come: a word of it may get lost
Whose = tuple[int, int]  # a node's number and, of the server, a run's


def admit_operator(plugin: Any, token: str) -> Any:
    """Let a SuperLink's plugin that admits everybody to the Control API admit who knows the token."""
    admit = plugin.validate_tokens_in_metadata

    def admit_by_token(metadata: Sequence[tuple[str, str | bytes]]) -> tuple[bool, Any]:
        said = dict(metadata).get(ACCESS_TOKEN_KEY, b"")
        said = said.encode() if isinstance(said, str) else said
        known: tuple[bool, Any] = admit([])
        return known if hmac.compare_digest(said, token.encode()) else (False, None)

    patch(plugin, validate_tokens_in_metadata=admit_by_token)
    return plugin


def main() -> None:
    """Take ``--operator-token-file`` away from the arguments, and leave the rest to ``flower-superlink``.

    One of the rest has to be ``--database``: what is checked of pushes is checked there."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--operator-token-file", type=Path, required=True)
    parser.add_argument("--database", required=True)
    known, rest = parser.parse_known_args()
    token = known.operator_token_file.read_text().strip()
    if not token:
        parser.error(f"{known.operator_token_file} is empty; make it with fedpart keys.")
    arrivals, start = Arrivals(), datetime.now(UTC)

    def send_again() -> None:
        redeliver(known.database, start)
        arrivals.more()

    if Path(known.database).is_file():
        again = threading.Timer(REDELIVERY_SECONDS, send_again)
        again.daemon = True
        again.start()
    sys.argv[1:] = [*rest, "--database", known.database]
    os.umask(0o077)  # its database holds uploads
    # Its package hides it by a function.
    flower: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    plugin = flower.load_control_authn_plugin
    patch(flower, load_control_authn_plugin=lambda: admit_operator(plugin(), token))
    hide_from_database()
    take_turns()
    hold_questions(arrivals)  # first: what is refused has not come
    pushes = Pushes()
    guard_pushes(pushes)
    guard_instructions(pushes)
    open_door(flower, arrivals)
    flower.flower_superlink()


class Arrivals:
    """Messages and replies on their way, by whom they are for; whole when all their objects have come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.on_way = dict[str, _Coming]()
        self._came = dict[str, float]()  # when objects have come, those of the last minute
        self._empty = dict[Whose, float]()  # when there was nothing at the last look; nothing has come since
        self._asking = dict[Whose, tuple[asyncio.AbstractEventLoop, asyncio.Event]]()
        self._over = False  # whether this process ends

    def announcing(self, push: Callable[..., Any]) -> Callable[..., Any]:
        """A handler of pushed messages, after which it is known here which objects are to come.

        Some may have come meanwhile: those that another message has, too."""

        def announced(request: Any, *given: Any, **more: Any) -> Any:
            begun = time.monotonic()
            answer, now = push(request, *given, **more), time.monotonic()
            pushed = dict[str, tuple[Whose, set[str]]]()
            for new, tree in zip(request.messages_list, request.message_object_trees, strict=False):
                parts = {part.object_id for part in iterate_object_tree(tree)}
                pushed[new.metadata.message_id] = whose(new), parts
            with self._lock:
                self._came = {id: at for id, at in self._came.items() if at > begun - KEPT_SECONDS}
                missing = {id for id in answer.objects_to_push if self._came.get(id, -math.inf) < begun}
                coming = {id: _Coming(to, now, parts & missing) for id, (to, parts) in pushed.items()}
                late = {id: sent for id, sent in self.on_way.items() if now - sent.begun >= PARTS_SECONDS}
                self.on_way = {id: sent for id, sent in self.on_way.items() if id not in late} | coming
                self._tell([sent.to for sent in late.values()])
                self._note_whole()
            return answer

        return announced

    def noting(self, push_object: Callable[..., Any]) -> Callable[..., Any]:
        """A handler of pushed objects, after which it is known here that an object has come."""

        def noted(request: Any, *given: Any, **more: Any) -> Any:
            answer = push_object(request, *given, **more)
            with self._lock:
                if answer.stored:
                    self._came[request.object_id] = time.monotonic()
                    for sent in self.on_way.values():
                        sent.parts.discard(request.object_id)
                    self._note_whole()
            return answer

        return noted

    async def wait(self, who: Whose, seconds: float) -> bool:
        """Wait for something whole, or the end; whether there is nothing. Who asks twice is told once."""
        told = asyncio.Event()
        with self._lock:
            self._asking[who] = asyncio.get_running_loop(), told
            self._tell([] if who in self._empty else [who])
        with suppress(TimeoutError):
            await asyncio.wait_for(told.wait(), 0 if self._over else seconds)
        with self._lock:
            return not told.is_set() and time.monotonic() - self._empty.get(who, -math.inf) < SURE_SECONDS

    def look(self, who: Whose) -> bool:
        """Whether it is a good moment to look: nothing is on its way of which a part would be found."""
        with self._lock:
            if not (comes := self._comes(who)):
                self._empty[who] = time.monotonic()
            return not comes

    def more(self, who: Whose | None = None) -> None:
        """There may be more than what has been handed out; None: for everybody."""
        with self._lock:
            self._tell([*self._empty, *self._asking] if who is None else [who])

    def end(self) -> None:
        """Nobody waits any more."""
        self._over = True
        self.more()

    def _tell(self, whom: Collection[Whose]) -> None:
        for who in {*whom}:
            self._empty.pop(who, None)
            if who in self._asking and not self._comes(who):
                loop, told = self._asking.pop(who)
                loop.call_soon_threadsafe(told.set)

    def _comes(self, who: Whose) -> bool:
        now = time.monotonic()
        return any(sent.to == who and now - sent.begun < PARTS_SECONDS for sent in self.on_way.values())

    def _note_whole(self) -> None:
        if whole := {id: sent.to for id, sent in self.on_way.items() if not sent.parts}:
            self.on_way = {id: sent for id, sent in self.on_way.items() if id not in whole}
            self._tell(whole.values())


class _Coming(NamedTuple):
    to: Whose
    begun: float
    parts: set[str]


def whose(message: Any) -> Whose:
    """For whom it is: a node, or the ServerApp of a run."""
    to, run = message.metadata.dst_node_id, message.metadata.run_id
    return to, run if to == SUPERLINK_NODE_ID else 0


def hold_questions(arrivals: Arrivals) -> None:
    """Let this process's SuperLink tell ``arrivals`` what comes, and hand out what is whole."""
    modules = list[Any]((fleet_handlers, runtime_handlers))
    fleet, runtime = modules
    for handlers in modules:
        patch(handlers, push_messages=arrivals.announcing(handlers.push_messages))
        patch(handlers, push_object=arrivals.noting(handlers.push_object))
    nodes, server = fleet.pull_messages, runtime.pull_messages

    def to_node(request: Any, **more: Any) -> Any:
        who = request.node.node_id, 0
        if not arrivals.look(who):
            return message("PullMessagesResponse")()
        answer = nodes(request, **more)
        if answer.messages_list:
            arrivals.more(who)  # it is one at a time
        return answer

    def to_server(request: Any, state: Any, task: Any) -> Any:
        arrivals.look((SUPERLINK_NODE_ID, task.run_id))
        return server(request, state, task)

    patch(fleet, pull_messages=to_node)
    patch(runtime, pull_messages=to_server)
    serve({"superlink_requests": "status"}, {"superlink_queue": lambda: len(arrivals.on_way)})


if __name__ == "__main__":
    main()
