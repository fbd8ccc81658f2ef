"""RayGrid: Flower's Grid over Ray actors in which the ClientApp runs."""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from uuid import uuid4

from simulations import flower_environment  # noqa: F401

# isort: split
import cloudpickle
import ray
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedpart.engines.block import ahead
from simulations.ray_actor import FIRST_NODE, Actor, error_reply, unpack
from simulations.ray_cluster import join
from simulations.ray_slot import Slot, make_slots

RUN_ID = 1
DEATHS = 3  # a message that kills its actor this often becomes an error


def claim_identity(run_id: int = RUN_ID) -> None:
    """Let this process create messages outside Flower's own runtimes (a private interface of Flower)."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, SUPERLINK_NODE_ID


class _Task:
    """A message on its way: without its arrays, which travel once for all messages that share them."""

    def __init__(self, message: Message, arrays: dict[str, Any]) -> None:
        self.message, self.arrays = message, arrays  # arrays: by record name, references into Ray's store
        self.id: str = message.metadata.message_id
        self.deaths = 0
        self.wanted = True


class _Actor:
    """An actor, and the calls that it has not answered yet: by the references to their results, in order."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.calls: dict[Any, tuple[list[_Task], Slot | None]] = {}

    def takes(self, tasks: list[_Task]) -> bool:
        """Whether it may be sent a call: the only one, or, unless an actor has died of them, the second."""
        calls = [*(sent for sent, _ in self.calls.values()), tasks]
        return len(calls) == 1 or (len(calls) == 2 and not any(call[0].deaths for call in calls))


class RayGrid(Grid):
    """A Grid whose nodes 0..N-1 share a few Ray actors; use it as a context manager.

    It waits for results without polling, sends small messages several per call, puts arrays that messages
    share into Ray's store once, sends an actor its next call while it computes, and replaces an actor that
    dies, whose messages then run again. However many messages are sent, :meth:`send_and_receive` holds the
    replies of few. Context.state is not kept.

    Args:
        load: returns the ClientApp; called once in every actor.
        clients: N; client i is the node with partition-id i.
        run_config: of every node's context.
        workers: actors, if the cluster has as many CPU cores; None: one per core.
        address: of a Ray cluster; None: start one here, unless this process is connected already.
        gpu: let the actors share the cluster's GPUs.

    Raises:
        OSError: there is no cluster at ``address``.
    """

    def __init__(
        self,
        load: Callable[[], ClientApp],
        clients: int,
        run_config: Mapping[str, Any] | None = None,
        *,
        workers: int | None = None,
        address: str | None = None,
        gpu: bool = False,
    ) -> None:
        claim_identity()
        self._run, self._clients = Run.create_empty(RUN_ID), clients
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            join(address, workers)
        resources = ray.cluster_resources()
        cores = int(resources.get("CPU", 1))
        self.workers = max(1, min(workers or cores, cores, clients))
        remote = ray.remote(num_cpus=1, num_gpus=resources.get("GPU", 0) / self.workers if gpu else 0)(Actor)
        arguments = (cloudpickle.dumps(load), sys.path, clients, dict(run_config or {}))
        self._start: Callable[[], Any] = lambda: remote.remote(*arguments)
        self._actors = [_Actor(self._start()) for _ in range(self.workers)]
        self._slots = deque(make_slots(ahead(self.workers)))  # those that no call has, used in turn
        self._queue: deque[list[_Task]] = deque()
        self._replies: dict[str, Message] = {}

    def __enter__(self) -> RayGrid:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the actors, and Ray if this grid has started it."""
        for actor in self._actors:
            ray.kill(actor.handle)
        self._actors = []
        if self._owns_ray:
            ray.shutdown()

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A new message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Ids of all nodes."""
        return [FIRST_NODE + client for client in range(self._clients)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; returns their ids."""
        calls = self._calls(messages)
        self._queue.extend(calls)
        self._dispatch()
        return [task.id for call in calls for task in call]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are there."""
        self._collect(0.0)
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages; the replies in the order of the messages, each as soon as it is its turn.

        A few messages are under way at once, see :func:`~fedpart.engines.block.ahead`; the first go out when
        a reply is asked for, the others when replies are taken. What is missing after ``timeout`` seconds is
        given up.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        return self._stream(deque(self._calls(messages)), deadline)

    def _stream(self, later: deque[list[_Task]], deadline: float | None) -> Iterator[Message]:
        sent: deque[list[_Task]] = deque()
        try:
            while later or sent:
                while later and len(sent) < ahead(self.workers):
                    sent.append(later.popleft())
                    self._queue.append(sent[-1])
                self._dispatch()
                while not all(task.id in self._replies for task in sent[0]):
                    rest = None if deadline is None else deadline - time.monotonic()
                    if rest is not None and rest <= 0:
                        self._give_up(sent)
                        later.clear()
                        break
                    self._collect(rest)
                for task in sent.popleft():
                    if task.id in self._replies:
                        yield self._replies.pop(task.id)
        finally:  # whoever takes the replies may stop before the last one
            for task in itertools.chain(*sent):
                task.wanted = False
                self._replies.pop(task.id, None)
            self._queue = deque(call for call in self._queue if call[0].wanted)

    def _calls(self, messages: Iterable[Message]) -> list[list[_Task]]:
        """Messages with arrays one per call; others many, fewer at the end, so that actors end together."""
        stored: dict[int, Any] = {}  # references by identity of the record

        def store(record: ArrayRecord) -> Any:
            if id(record) not in stored:
                stored[id(record)] = ray.put(record)
            return stored[id(record)]

        tasks = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            arrays = {name: store(r) for name, r in message.content.items() if isinstance(r, ArrayRecord)}
            rest = RecordDict({name: r for name, r in message.content.items() if name not in arrays})
            tasks.append(_Task(Message(metadata=message.metadata, content=rest), arrays))
        calls = []
        while tasks:
            size = 1 if tasks[0].arrays else -(-len(tasks) // (2 * self.workers))
            calls.append(tasks[:size])
            tasks = tasks[size:]
        return calls

    def _dispatch(self) -> None:
        """Send calls to the actors that have the fewest, so that none waits for this process."""
        while self._queue:
            actor = min(self._actors, key=lambda one: len(one.calls))
            if not actor.takes(self._queue[0]):
                return
            tasks, slot = self._queue.popleft(), self._slots.popleft() if self._slots else None
            messages, arrays = [task.message for task in tasks], [task.arrays for task in tasks]
            result = actor.handle.answer.remote(messages, arrays, slot and slot.address)
            actor.calls[result] = tasks, slot

    def _collect(self, timeout: float | None) -> None:
        """Take in finished calls, waiting for at least one; without a wait, all that are finished."""
        actors = {result: actor for actor in self._actors for result in actor.calls}
        count = len(actors) if timeout == 0.0 else 1
        ready, _ = ray.wait(list(actors), num_returns=count, timeout=timeout) if actors else ([], [])
        for result in ready:
            if result in actors[result].calls:  # or its actor was replaced a moment ago
                self._finish(actors[result], result)
        self._dispatch()

    def _finish(self, actor: _Actor, result: Any) -> None:
        """Take in a finished call."""
        tasks, slot = actor.calls[result]
        try:
            replies = ray.get(result)
        except ray.exceptions.RayTaskError as error:  # e.g. a reply that cannot be pickled
            self._fail(tasks, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error))
        except ray.exceptions.RayError as error:  # the actor is dead, or out of reach
            self._run_again(self._replace(actor), error)
            return
        else:
            for task, reply in zip(tasks, replies, strict=True):
                self._take(task, unpack(reply, slot))
        del actor.calls[result]
        if slot is not None:
            self._slots.append(slot)

    def _replace(self, actor: _Actor) -> list[list[_Task]]:
        """A new actor for one that died or is to; returns its calls, whose slots it may still write to."""
        ray.kill(actor.handle)
        calls, actor.handle, actor.calls = actor.calls, self._start(), {}
        self._slots += make_slots(sum(slot is not None for _, slot in calls.values()))
        return [tasks for tasks, _ in calls.values()]

    def _run_again(self, calls: Iterable[list[_Task]], error: Exception) -> None:
        """Run the messages that a dead actor had one by one, which shows the one to blame."""
        for task in itertools.chain(*calls):
            task.deaths += 1
            if task.deaths < DEATHS:
                self._queue.appendleft([task])
            else:
                why = f"its process died {DEATHS} times ({str(error).splitlines()[0]})"
                self._fail([task], ErrorCode.CLIENT_APP_CRASHED, why)

    def _give_up(self, calls: Iterable[list[_Task]]) -> None:
        """Drop calls; actors that still have them are replaced: they hold nothing up."""
        dropped = {task.id for task in itertools.chain(*calls)}
        for actor in self._actors:
            if any(tasks[0].id in dropped for tasks, _ in actor.calls.values()):
                self._queue.extendleft(reversed(self._replace(actor)))
        self._queue = deque(call for call in self._queue if call[0].id not in dropped)

    def _fail(self, tasks: list[_Task], code: int, reason: str) -> None:
        for task in tasks:
            self._take(task, error_reply(task.message, code, reason))

    def _take(self, task: _Task, reply: Message) -> None:
        if task.wanted:
            reply.metadata.__dict__["_message_id"] = str(uuid4())
            self._replies[task.id] = reply
