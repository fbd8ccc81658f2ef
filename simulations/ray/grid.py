"""RayGrid: Flower's Grid over Ray actors in which the ClientApp runs."""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import cloudpickle
import ray
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedpart.flower.workarounds.objects import RUN_ID, ErrorCode, Run, claim_identity, identify, make_message
from simulations.errors import RunError
from simulations.ray.actor import FIRST_NODE, Actor, make_slots, unpack
from simulations.ray.cluster import join

WAITING = 2  # an actor with this many replies that nobody has taken stops: it bounds the memory
DEATHS = 3  # a message that kills its actor this often becomes an error


class _Task:
    """A message on its way: without its arrays, which travel once for all messages that share them."""

    def __init__(self, message: Message, arrays: dict[str, Any], pushed: bool) -> None:
        self.message, self.arrays = message, arrays  # arrays: by record name, references into Ray's store
        self.pushed = pushed  # nobody may ever ask for the reply: no actor waits until it is taken
        self.id: str = message.metadata.message_id
        self.actor: _Actor  # that has it in its calls
        self.deaths = 0


class _Actor:
    """An actor, and the calls for it: their messages that it has not answered yet. The first call is sent."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self.calls: deque[deque[_Task]] = deque()
        self._begin()

    def _begin(self) -> None:
        self.slots = deque(make_slots(WAITING + 1))  # used in turn: one is read, others wait or are written
        self.handle = self._start()
        self._begun = self.handle.prepare.remote()
        self.replies: Any = None  # to the call that is sent: references, as they come

    def send(self) -> None:
        """Send the first call, unless it is sent."""
        if self.calls and self.replies is None:
            messages, arrays = zip(*((task.message, task.arrays) for task in self.calls[0]), strict=True)
            waiting, slots = (None, ()) if self.calls[0][0].pushed else (WAITING, self.slots)
            options = {"num_returns": "streaming", "_generator_backpressure_num_objects": waiting}
            method = self.handle.answer.options(**options)
            self.replies = method.remote(messages, arrays, [slot.address for slot in slots])

    def next(self) -> Message:
        """The next reply to the call that is sent."""
        reply = unpack(ray.get(next(self.replies)), self.slots[0] if self.slots else None)
        self.slots.rotate(-1)
        return reply

    def pop(self) -> _Task:
        """The message that is answered next; its call is over with the last one."""
        task = self.calls[0].popleft()
        if not self.calls[0]:
            self.calls.popleft()
            self.replies = None
        return task

    def begun(self) -> bool:
        """Whether it has a place in the cluster, and is ready."""
        if self._begun is not None and ray.wait([self._begun], timeout=0)[0]:
            self._begun = None
        return self._begun is None

    def stop(self) -> None:
        """Give up the call that is sent, once the client that runs is done."""
        if self.replies is not None:  # it could be sent
            ray.cancel(self.replies)
        self.replies = None

    def replace(self) -> None:
        """Another process, with slots of its own: the former may still write to those that it has."""
        ray.kill(self.handle)
        self._begin()


class RayGrid(Grid, AbstractContextManager["RayGrid"]):
    """A Grid whose nodes 0..N-1 share a few Ray actors; use it as a context manager.

    It waits for results without polling, sends an actor all its messages in one call, puts arrays that
    messages share into Ray's store once, and replaces an actor that dies, whose messages then run again.
    Where a host is gone, and with it the room for an actor, others take its messages until there is room.
    However many messages :meth:`send_and_receive` sends, few replies are there while one such stream is read
    at a time: an actor goes on when those before have been taken.
    Context.state is not kept.

    ``load`` returns the ClientApp, and is called once in every actor; ``workers`` are actors, None: one per
    CPU core; ``address`` is of a Ray cluster, None: one is started here, unless this process is connected
    already. From the moment ``until``, of ``time.monotonic``, no reply is waited for.
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
        self._run, self._clients, self.until = Run.create_empty(RUN_ID), clients, math.inf
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            join(address, workers)
        resources = ray.cluster_resources()
        self.workers = max(1, min(workers or clients, int(resources.get("CPU", 1)), clients))
        gpus, share, self._actors_on = resources.get("GPU", 0) if gpu else 0, 0.0, {"CPU": 1}
        if gpus:
            self._actors_on["GPU"] = math.ceil(self.workers / gpus)
            share = 10_000 // self._actors_on["GPU"] / 10_000  # Ray counts with four digits
        remote = ray.remote(num_cpus=1, num_gpus=share)(Actor)
        arguments = (cloudpickle.dumps(load), sys.path, clients, dict(run_config or {}))
        self._actor = lambda: _Actor(lambda: remote.remote(*arguments))
        self._actors = [self._actor() for _ in range(self.workers)]
        self._replies: dict[str, Message] = {}

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the actors, and Ray if this grid has started it."""
        for actor in self._actors:
            ray.kill(actor.handle)
        self._actors = []
        if self._owns_ray:
            ray.shutdown()
            self._owns_ray = False

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        return [FIRST_NODE + client for client in range(self._clients)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        tasks = self._tasks(messages, pushed=True)
        self._send(tasks)
        return [task.id for task in tasks]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        now = time.monotonic()
        for actor in self._actors:
            while self._receive(actor, now):
                pass
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """The replies in the messages' order, as they come; what is missing after ``timeout`` is given up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return self._stream(self._tasks(messages, pushed=False), deadline)

    def _stream(self, tasks: list[_Task], deadline: float | None) -> Iterator[Message]:
        try:
            self._send(tasks)
            for task in tasks:
                while task.id not in self._replies and self._receive(task.actor, deadline):
                    pass
                if task.id in self._replies:
                    yield self._replies.pop(task.id)
        finally:  # whoever takes the replies may stop before the last one
            late = deadline is not None and time.monotonic() >= deadline
            self._drop(tasks, _Actor.replace if late else _Actor.stop)

    def _tasks(self, messages: Iterable[Message], pushed: bool) -> list[_Task]:
        stored: dict[int, Any] = {}  # references by identity of the record

        def store(record: ArrayRecord) -> Any:
            if id(record) not in stored:
                stored[id(record)] = ray.put(record)
            return stored[id(record)]

        tasks = []
        for message in messages:
            identify(message, str(uuid4()))
            arrays = {name: store(r) for name, r in message.content.items() if isinstance(r, ArrayRecord)}
            rest = RecordDict({name: r for name, r in message.content.items() if name not in arrays})
            tasks.append(_Task(make_message(message.metadata, rest), arrays, pushed))
        return tasks

    def _send(self, tasks: list[_Task]) -> None:
        """Deal messages out, one call per actor, beginning with those that have least to do."""
        if len(self._actors) < self.workers:  # a host may have come
            self._actors += [self._actor() for _ in range(self._room() - len(self._actors))]
        actors = sorted(self._actors, key=lambda actor: sum(map(len, actor.calls)))
        for first, actor in enumerate(actors[: len(tasks)]):
            call = deque(tasks[first :: len(actors)])
            for task in call:
                task.actor = actor
            actor.calls.append(call)
            actor.send()

    def _room(self) -> int:
        """How many of its actors the cluster has room for now, other programs' left out."""
        resources = ray.cluster_resources()
        rooms = (int(resources.get(kind, 0) * actors) for kind, actors in self._actors_on.items())
        return max(1, min(self.workers, *rooms))

    def _homeless(self, actor: _Actor) -> bool:
        """Whether an actor waits for a place while there is room for fewer: a host is gone."""
        return not actor.begun() and self._room() < len(self._actors)

    def _leave(self, actor: _Actor) -> None:
        """End an actor; others take its messages."""
        self._actors.remove(actor)
        ray.kill(actor.handle)
        self._send([task for call in actor.calls for task in call])

    def _receive(self, actor: _Actor, deadline: float | None) -> bool:
        """Take in an actor's next reply, to whichever message; False: none comes before ``deadline``."""
        if actor.replies is None or not self._comes(actor, deadline):
            return False
        if self._homeless(actor):
            self._leave(actor)
            return True
        task = actor.calls[0][0]
        try:
            reply = actor.next()
        except ray.exceptions.RayTaskError as error:  # e.g. a reply that cannot be pickled; it ends the call
            failed = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error))
            reply = Message(failed, reply_to=task.message)
            actor.replies = None
        except ray.exceptions.RayError as error:  # the actor is dead, or out of reach
            actor.replace()
            task.deaths += 1
            if task.deaths < DEATHS:
                actor.calls.appendleft(deque([actor.pop()]))  # alone, which shows whether it is to blame
                actor.send()
                return True
            why = f"its process died {DEATHS} times ({str(error).splitlines()[0]})"
            reply = Message(Error(ErrorCode.CLIENT_APP_CRASHED, why), reply_to=task.message)
        actor.pop()
        actor.send()
        identify(reply, str(uuid4()))
        self._replies[task.id] = reply
        return True

    def _comes(self, actor: _Actor, deadline: float | None) -> bool:
        """Whether an actor's next reply is there before ``deadline``, or it is clear that none will be."""
        while True:
            now = time.monotonic()
            if now >= self.until:
                raise RunError("The clients of this round are not waited for any longer; resume the run.")
            rest = math.inf if deadline is None else max(0.0, deadline - now)
            if ray.wait([actor.replies], timeout=min(rest, 1.0))[0] or self._homeless(actor):
                return True
            if rest <= 1.0:
                return False

    def _drop(self, tasks: Iterable[_Task], end: Callable[[_Actor], None]) -> None:
        """Forget messages; ``end`` is called of actors that have a call with some of them."""
        dropped = {task.id for task in tasks}
        for actor in self._actors:
            if actor.calls and actor.calls[0][0].id in dropped:
                end(actor)
            actor.calls = deque(call for call in actor.calls if call[0].id not in dropped)
            actor.send()
        for id in dropped:
            self._replies.pop(id, None)
