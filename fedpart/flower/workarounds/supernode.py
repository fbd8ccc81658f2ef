"""A SuperNode that hands messages on when they come: ``python -m fedpart.flower.workarounds.supernode``.

The faults: Flower's SuperNode looks for messages every three seconds and for replies every half second, lets
its executor ask for work again and again, and looks ten times a second whether it shall end. It waits forever
for the reply of a ClientApp that has failed without one, or within one, and takes the end of an earlier
ClientApp for that of the message at hand. A message whose run ends while its parts come is left behind with
its task; it is answered as if its ClientApp had died. Replies are sent only after a message has come, one for
each: so that of the next run waits for ever for one more message. Where the SuperLink refuses its signature,
it says that it has ended gracefully. Its arguments are those of ``flower-supernode``."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from importlib.metadata import entry_points
from logging import ERROR, getLogger
from os import _exit as leave
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import httpx
import uvicorn
from flwr.app import Message
from flwr.common.constant import Status, SubStatus
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate import InMemoryNodeState, nodestate_factory
from flwr.supernode.servicer.runtime import runtime_handlers

from fedpart.flower.workarounds.metrics import count, serve
from fedpart.flower.workarounds.protocol import CLIENT_APP, SHORTEST, patch, pause, refusal, retry_handshakes
from fedpart.flower.workarounds.protocol import message as of_protocol

Call = Callable[..., Any]
LIVE = (Status.PENDING, Status.STARTING, Status.RUNNING)
HOLD_SECONDS = 2.0  # that an executor's question for work may take, twice: it is taken for dead after five
TICK_SECONDS = 0.5  # after which the server for executors looks whether it ends: Flower gives it three
log = getLogger("flwr").log


class State(InMemoryNodeState):
    """What a SuperNode knows of its messages and tasks."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        counted = dict.fromkeys(("supernode_messages", "supernode_replies", "supernode_failures"), "")
        serve(counted, {"supernode_queue": lambda: len(self.msg_store)})
        self.receiving = threading.Lock()  # held while a message, whose task is there before, is fetched
        self.work = threading.Event()  # set when a message has come

    def get_messages_legacy(self, *, is_reply: bool | None = None, **which: Any) -> Sequence[Message]:
        """As Flower's own, but a reply only once all of it is here: its ClientApp may die before that."""
        messages: Sequence[Message] = super().get_messages_legacy(is_reply=is_reply, **which)
        with self.lock_msg_store:
            whole, parts = self._split(messages)
            for message in parts:
                self.msg_store[message.metadata.message_id].is_retrieved = False
        count("supernode_replies", len(whole) if is_reply else 0)
        return whole

    def finish_task(self, task_id: int, sub_status: str, details: str) -> bool:
        """End a task; if its ClientApp has failed without a reply, the message is answered with an error."""
        finished: bool = super().finish_task(task_id, sub_status, details)
        if finished and sub_status == SubStatus.FAILED:
            count("supernode_failures")
            with self.lock_task_store:
                self._on_task_tokens_expired([self.task_store[task_id]])
        return finished

    def _on_task_tokens_expired(self, tasks: list[Any]) -> None:
        """Flower's own, also for messages not fetched and for replies in part.

        Where a later task has the run's message, nothing is to be said."""
        live = {task.run_id for task in self.task_store.values() if task.status.status in LIVE}
        tasks = [task for task in tasks if task.run_id not in live]
        runs = {task.run_id for task in tasks if task.type == CLIENT_APP}
        with self.lock_msg_store:
            here = [entry for entry in self.msg_store.values() if entry.message.metadata.run_id in runs]
            replies = [entry.message for entry in here if entry.message.metadata.reply_to_message_id]
            for message in self._split(replies)[1]:
                self.delete_messages(message_ids=[message.metadata.message_id])
                self.object_store.delete(message.metadata.message_id)
            for entry in here:
                if not entry.message.metadata.reply_to_message_id:
                    entry.is_retrieved = True
        super()._on_task_tokens_expired(tasks)

    def replied(self) -> int | None:
        """The run of a reply that can be sent; None: there is none."""
        with self.lock_msg_store:
            new = [entry.message for entry in self.msg_store.values() if not entry.is_retrieved]
            replies = self._split(message for message in new if message.metadata.reply_to_message_id)[0]
            return int(replies[0].metadata.run_id) if replies else None

    def _split(self, messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
        """Messages that can be handed on, and replies of which parts are missing."""
        whole, parts = list[Message](), list[Message]()
        for message in messages:
            reply = bool(message.metadata.reply_to_message_id)
            (parts if reply and not self._is_here(message.metadata.message_id) else whole).append(message)
        return whole, parts

    def _is_here(self, object_id: str) -> bool:
        try:
            tree = self.object_store.get_object_tree(object_id)
        except NoObjectInStoreError:
            return False
        return all(self.object_store.get(part.object_id) for part in iterate_object_tree(tree))


def acquire_task(request: Any, state: State) -> Any:
    """A task, which the executor waits for, or none after some :data:`HOLD_SECONDS`."""
    state.work.clear()
    task = _look(request, state)
    return task if task.token or not state.work.wait(HOLD_SECONDS) else _look(request, state)


_acquire = runtime_handlers.acquire_task


def _look(request: Any, state: State) -> Any:
    if not state.receiving.acquire(timeout=HOLD_SECONDS):
        return of_protocol("AcquireTaskResponse")()
    try:
        return _acquire(request, state)
    finally:
        state.receiving.release()


def look_more_often() -> None:
    """Let this process's SuperNode look for messages as :func:`.pause` says, counted from the last one.

    For replies, which are in its own memory, it looks as often as that, while no question is held."""
    flower: Any = start_client_internal
    pull, last, asked = flower._pull_and_store_message, time.monotonic(), 0.0

    def pulled(*, state: State, **given: Any) -> int | None:
        nonlocal last, asked
        asked = time.monotonic()
        calls = {name: _or_fail(given[name]) for name in ("pull_object", "confirm_message_received")}
        with ExitStack() as coming:

            def receive() -> Any:
                if (message := given["receive"]()) is not None:
                    coming.enter_context(state.receiving)
                return message

            run: int | None = pull(state=state, **given | calls | {"receive": receive})
        if run is None:
            return state.replied()  # sent next, as after a message
        last = time.monotonic()
        count("supernode_messages")
        state.work.set()
        return run

    def sleep(seconds: float) -> None:
        now = time.monotonic()
        time.sleep(SHORTEST if seconds < 1.0 else max(SHORTEST, pause(now - last, seconds) - (now - asked)))

    patch(flower, _pull_and_store_message=pulled, time=SimpleNamespace(sleep=sleep))


def tick_less_often() -> None:
    """Let this process's server for executors cost nothing while nobody asks it."""

    async def main_loop(server: uvicorn.Server) -> None:
        while not await server.on_tick(0):
            await asyncio.sleep(TICK_SECONDS)

    patch(uvicorn.Server, main_loop=main_loop)


def _or_fail(call: Call) -> Call:
    """The run's end fails as anything else does, and then Flower takes the message and its task back."""

    def called(*given: Any) -> Any:
        try:
            return call(*given)
        except RunNotRunningException as ended:
            raise RuntimeError("The run has ended.") from ended

    return called


def tell_refusal() -> None:
    """Let this process's SuperNode end with status 1 where its SuperLink refuses its key, and say why."""
    send = httpx.Client.send

    def sent(client: httpx.Client, request: httpx.Request, **more: Any) -> httpx.Response:
        response: httpx.Response = send(client, request, **more)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            response.read()
            needs = "whose key has to be registered there, and whose clock has to be right"
            log(ERROR, "The SuperLink refuses this SuperNode, %s: %s", needs, refusal(response)[:300])
            leave(1)
        return response

    patch(httpx.Client, send=sent)


def main() -> None:
    """Run Flower's SuperNode with the arguments of this command."""
    patch(nodestate_factory, InMemoryNodeState=State)
    patch(runtime_handlers, acquire_task=acquire_task)
    look_more_often()
    tick_less_often()
    retry_handshakes()
    tell_refusal()
    resolve_name(next(iter(entry_points(group="console_scripts", name="flower-supernode"))).value)()


if __name__ == "__main__":
    main()
