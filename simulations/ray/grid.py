"""RayGrid: Flower's Grid over Ray actors in which the ClientApp runs."""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from logging import getLogger
from typing import Any
from uuid import uuid4

import cloudpickle
import ray
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedpart.federated.cohorts import CohortSum
from fedpart.federated.protocol import Protocol
from fedpart.flower.workarounds.objects import RUN_ID, ErrorCode, Run, claim_identity, identify, make_message
from fedpart.updates.errors import ClientError
from fedpart.updates.update import Round
from simulations.errors import RunError
from simulations.ray.actor import FIRST_NODE, Actor, Remote, Task
from simulations.ray.cluster import join
from simulations.ray.relay import send

GRACE = 10.0  # seconds beyond the timeout of a relayed round in which clients that have begun may end
DEATHS = 3  # a message that kills its actor this often becomes an error


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
    already. From the moment ``until``, of ``time.monotonic``, no reply is waited for."""

    def __init__(
        self, load: Callable[[], ClientApp], clients: int, run_config: Mapping[str, Any] | None = None, *,
        workers: int | None = None, address: str | None = None, gpu: bool = False,
    ) -> None:  # fmt: skip
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
        self._actor = lambda: Remote(lambda: remote.remote(*arguments))
        self._actors = [self._actor() for _ in range(self.workers)]
        self._replies: dict[str, Message] = {}
        self._protocol: tuple[Any, Any] = None, None  # the one that was relayed last, and where it is

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
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str,
        ttl: float | None = None,
    ) -> Message:  # fmt: skip
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
        tasks = self._tasks(messages, pushed=False)
        try:
            self._send(tasks)
            for task in tasks:
                while task.id not in self._replies and self._receive(task.actor, deadline):
                    pass
                if task.id in self._replies:
                    yield self._replies.pop(task.id)
        finally:  # whoever takes the replies may stop before the last one
            late = deadline is not None and time.monotonic() >= deadline
            self._drop(tasks, Remote.replace if late else Remote.stop)

    def relay(
        self, messages: Iterable[Message], protocol: Protocol, round: Round, timeout: float
    ) -> CohortSum | None:
        """The sum of the replies, to the bit, of which one a host travels; None: one host, or it failed."""
        hosts = {actor.host for actor in self._actors if actor.begun()}
        if len(hosts) < 2 or not all(actor.host for actor in self._actors):
            return None
        if self._protocol[0] is not protocol:
            self._protocol = protocol, ray.put(protocol)
        here = ray.get_runtime_context().get_node_id()  # where the sum ends
        actors = sorted(self._actors, key=lambda actor: (actor.host == here, actor.host))
        tasks = self._tasks(messages, pushed=False)
        sums = send([actor.handle for actor in actors], tasks, self._protocol[1], round, timeout)
        try:
            done = self._comes(sums[-1], time.monotonic() + timeout + GRACE)
            summed = ray.get(sums[-1]) if done else "a client takes too long"
        except ray.exceptions.RayError as error:
            summed = str(error).splitlines()[0]
        if isinstance(summed, ClientError):
            raise summed
        if isinstance(summed, CohortSum):
            return summed
        getLogger("flwr").warning("Round %s is computed once more: %s", round.number, summed)
        late = time.monotonic()
        for actor, reference in zip(actors, sums, strict=False):
            ray.cancel(reference)
            if not self._comes(reference, late):  # it hangs, and would let the messages wait that come next
                actor.replace()
                late = time.monotonic() + GRACE  # for those behind it to see that
        return None

    def _tasks(self, messages: Iterable[Message], pushed: bool) -> list[Task]:
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
            tasks.append(Task(make_message(message.metadata, rest), arrays, pushed))
        return tasks

    def _send(self, tasks: list[Task]) -> None:
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

    def _homeless(self, actor: Remote) -> bool:
        """Whether an actor waits for a place while there is room for fewer: a host is gone."""
        return not actor.begun() and self._room() < len(self._actors)

    def _receive(self, actor: Remote, deadline: float | None) -> bool:
        """Take in an actor's next reply, to whichever message; False: none comes before ``deadline``."""
        if actor.replies is None or not self._comes(actor.replies, deadline, actor):
            return False
        if self._homeless(actor):
            self._actors.remove(actor)
            ray.kill(actor.handle)
            self._send([task for call in actor.calls for task in call])  # others take its messages
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

    def _comes(self, reference: Any, deadline: float | None, actor: Remote | None = None) -> bool:
        """Whether an object is there before ``deadline``, or its actor has no host, so that none will be."""
        while True:
            now = time.monotonic()
            if now >= self.until:
                raise RunError("The clients of this round are not waited for any longer; resume the run.")
            rest = math.inf if deadline is None else max(0.0, deadline - now)
            if ray.wait([reference], timeout=min(rest, 1.0))[0] or (actor and self._homeless(actor)):
                return True
            if rest <= 1.0:
                return False

    def _drop(self, tasks: Iterable[Task], end: Callable[[Remote], None]) -> None:
        """Forget messages; ``end`` is called of actors that have a call with some of them."""
        dropped = {task.id for task in tasks}
        for actor in self._actors:
            if actor.calls and actor.calls[0][0].id in dropped:
                end(actor)
            actor.calls = deque(call for call in actor.calls if call[0].id not in dropped)
            actor.send()
        for id in dropped:
            self._replies.pop(id, None)
