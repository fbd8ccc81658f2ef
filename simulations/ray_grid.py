"""RayGrid: Flower's Grid over Ray actors in which the ClientApp runs."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from simulations import flower_environment  # noqa: F401

# isort: split
import cloudpickle
import ray
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RUN_ID = 1
FIRST_NODE = 1000  # node ids are FIRST_NODE + client number, in every run
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


class _Actor:
    """Holds the ClientApp in a process of its own and answers several messages per call.

    ``load`` comes pickled, to be unpickled where the driver's ``path`` is known.
    """

    def __init__(self, load: bytes, path: list[str], clients: int, run_config: Mapping[str, Any]) -> None:
        sys.path.extend(place for place in path if place not in sys.path)
        self.load, self.clients, self.run_config = load, clients, dict(run_config)
        self.app: ClientApp | None = None

    def answer(
        self, messages: list[Message], names: list[dict[str, int]], *records: ArrayRecord
    ) -> list[Message]:
        """Replies to ``messages``; ``names[i]`` says which ``records`` belong into message i, and as what."""
        return [
            self._answer(message, {name: records[place] for name, place in own.items()})
            for message, own in zip(messages, names, strict=True)
        ]

    def _answer(self, message: Message, arrays: dict[str, ArrayRecord]) -> Message:
        node = message.metadata.dst_node_id
        context = Context(
            run_id=message.metadata.run_id,
            node_id=node,
            node_config={"partition-id": node - FIRST_NODE, "num-partitions": self.clients},
            state=RecordDict(),
            run_config=dict(self.run_config),
        )
        message.content.update(arrays)
        try:
            if self.app is None:
                self.app = cloudpickle.loads(self.load)()
            return self.app(message, context)
        except Exception as error:
            return _error(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}: {error}")


class RayGrid(Grid):
    """A Grid whose nodes 0..N-1 share a few Ray actors; use it as a context manager.

    It waits for results without polling, sends several messages per call, sends arrays that messages share
    once, and replaces an actor that dies, whose messages then run again. Context.state is not kept.

    Args:
        load: returns the ClientApp; called once in every actor.
        clients: N; client i is the node with partition-id i.
        run_config: of every node's context.
        workers: actors; None: one per CPU core.
        address: of a Ray cluster; None: start one here, unless this process is connected already.
        gpu: let the actors share the cluster's GPUs.
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
            size = {"num_cpus": workers} if address is None else {}
            ray.init(
                address=address or "local",
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level="ERROR",
                **size,
            )
        resources = ray.cluster_resources()
        self.workers = max(1, min(workers or int(resources.get("CPU", 1)), clients))
        remote = ray.remote(num_cpus=1, num_gpus=resources.get("GPU", 0) / self.workers if gpu else 0)(_Actor)
        arguments = (cloudpickle.dumps(load), sys.path, clients, dict(run_config or {}))
        self._start: Callable[[], Any] = lambda: remote.remote(*arguments)
        self._idle = [self._start() for _ in range(self.workers)]
        self._busy: dict[Any, tuple[Any, list[_Task]]] = {}  # by the reference to a call's result
        self._queue: deque[list[_Task]] = deque()
        self._replies: dict[str, Message] = {}

    def __enter__(self) -> RayGrid:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the actors, and Ray if this grid has started it."""
        for actor in [*self._idle, *(actor for actor, _ in self._busy.values())]:
            ray.kill(actor)
        self._idle, self._busy = [], {}
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
        self._share_out(tasks)
        self._dispatch()
        return [task.id for task in tasks]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are there."""
        self._collect(0.0)
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and wait for the replies; those missing after ``timeout`` seconds are given up."""
        ids = self.push_messages(messages)
        deadline = None if timeout is None else time.monotonic() + timeout
        while not all(i in self._replies for i in ids):
            rest = None if deadline is None else deadline - time.monotonic()
            if rest is not None and rest <= 0:
                self._give_up()
                break
            self._collect(rest)
        return [self._replies.pop(i) for i in ids if i in self._replies]

    def _share_out(self, tasks: list[_Task]) -> None:
        """Queue calls: large ones first, single messages last, so that the actors finish at the same time."""
        while tasks:
            size = -(-len(tasks) // (2 * self.workers))
            self._queue.append(tasks[:size])
            tasks = tasks[size:]

    def _dispatch(self) -> None:
        while self._idle and self._queue:
            actor, tasks = self._idle.pop(), self._queue.popleft()
            places: dict[Any, int] = {}
            names = [{k: places.setdefault(ref, len(places)) for k, ref in t.arrays.items()} for t in tasks]
            result = actor.answer.remote([task.message for task in tasks], names, *places)
            self._busy[result] = (actor, tasks)

    def _collect(self, timeout: float | None) -> None:
        """Take in finished calls, waiting for at least one."""
        ready, _ = ray.wait(list(self._busy), num_returns=1, timeout=timeout) if self._busy else ([], [])
        for result in ready:
            actor, tasks = self._busy.pop(result)
            try:
                replies = ray.get(result)
            except ray.exceptions.RayTaskError as error:  # e.g. a reply that cannot be pickled
                self._idle.append(actor)
                self._fail(tasks, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error))
            except ray.exceptions.RayError as error:  # the actor is dead, or out of reach
                self._replace(actor, tasks, error)
            else:
                self._idle.append(actor)
                for task, reply in zip(tasks, replies, strict=True):
                    self._take(task, reply)
        self._dispatch()

    def _replace(self, actor: Any, tasks: list[_Task], error: Exception) -> None:
        """A new actor for one that died; its messages run again one by one, which shows the one to blame."""
        ray.kill(actor)
        self._idle.append(self._start())
        for task in tasks:
            task.deaths += 1
            if task.deaths < DEATHS:
                self._queue.appendleft([task])
            else:
                why = f"its process died {DEATHS} times ({str(error).splitlines()[0]})"
                self._fail([task], ErrorCode.CLIENT_APP_CRASHED, why)

    def _give_up(self) -> None:
        """Drop all that is under way; actors that are still busy are replaced: they hold nothing up."""
        self._queue.clear()
        for actor, _ in self._busy.values():
            ray.kill(actor)
            self._idle.append(self._start())
        self._busy.clear()

    def _fail(self, tasks: list[_Task], code: int, reason: str) -> None:
        for task in tasks:
            self._take(task, _error(task.message, code, reason))

    def _take(self, task: _Task, reply: Message) -> None:
        reply.metadata.__dict__["_message_id"] = str(uuid4())
        self._replies[task.id] = reply


def _error(message: Message, code: int, reason: str) -> Message:
    return Message(Error(code=code, reason=reason), reply_to=message)
