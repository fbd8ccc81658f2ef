"""Calls: a Ray actor as the driver sees it, and the messages that it has been given."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from flwr.app import Message

from simulations.ray.actor import make_slots, unpack

WAITING = 2  # an actor with this many replies that nobody has taken stops: it bounds the memory


class Task:
    """A message on its way: without its arrays, which travel once for all messages that share them."""

    def __init__(self, message: Message, arrays: dict[str, Any], pushed: bool) -> None:
        self.message, self.arrays = message, arrays  # arrays: by record name, references into Ray's store
        self.pushed = pushed  # nobody may ever ask for the reply: no actor waits until it is taken
        self.id: str = message.metadata.message_id
        self.actor: Remote  # that has it in its calls
        self.deaths = 0


class Remote:
    """An actor, and the calls for it: their messages that it has not answered yet. The first call is sent."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self.calls: deque[deque[Task]] = deque()
        self._begin()

    def _begin(self) -> None:
        self.slots = deque(make_slots(WAITING + 1))  # used in turn: one is read, others wait or are written
        self.handle = self._start()
        self._begun, self.host = self.handle.prepare.remote(), ""
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

    def pop(self) -> Task:
        """The message that is answered next; its call is over with the last one."""
        task = self.calls[0].popleft()
        if not self.calls[0]:
            self.calls.popleft()
            self.replies = None
        return task

    def begun(self) -> bool:
        """Whether it has a place in the cluster, and is ready."""
        if self._begun is not None and ray.wait([self._begun], timeout=0)[0]:
            with suppress(ray.exceptions.RayError):  # what is wrong with it, its replies tell
                self.host = ray.get(self._begun)
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
