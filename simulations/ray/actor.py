"""The Ray actor in which a ClientApp answers, the memory of what it hands over, and how a driver sees it."""

import itertools
import mmap
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import cloudpickle
import numpy as np
import ray
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedpart.flower.workarounds.objects import ErrorCode
from fedpart.kernels.compiling import compiles
from simulations.ray.relay import Summed, receive

Address = tuple[str, str]  # path by which another process opens a slot, and what must be found there
Place = tuple[int, int]  # offset and length in a slot
Data = NDArray[np.uint8]


class Slot:
    """The arrays of a call's replies, as the driver sees them; its memory ends with the last who has it open.

    An object of 5 MB in Ray's store takes 4 ms of processors' time, of which copying it is a small part; a
    slot takes 1 ms."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.memfd_create(f"fedpart-{uuid4()}"), "rb", buffering=0)
        self._map: mmap.mmap | bytes = b""
        path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        self.address: Address = (path, os.readlink(path))

    def read(self, place: Place) -> bytes:
        """What an actor has written there."""
        offset, length = place
        if offset + length > len(self._map):
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map[offset : offset + length]


def make_slots(count: int) -> list[Slot]:
    """New slots; none where the system has no such memory."""
    return [Slot() for _ in range(count)] if hasattr(os, "memfd_create") else []


class Writer:
    """A slot as an actor sees it, from its beginning; without a file there is no room in it."""

    def __init__(self, file: int | None) -> None:
        self._file, self._end = file, 0

    def write(self, data: Data) -> Place | Data:
        """Where the data are now; the data themselves if there is no room."""
        try:
            if self._file is None or os.pwrite(self._file, data, self._end) < len(data):
                return data
        except OSError:
            return data
        self._end += len(data)
        return self._end - len(data), len(data)


@contextmanager
def writing(address: Address | None) -> Iterator[Writer]:
    """Open a slot in an actor; nothing has room in one that is on another machine, or in none."""
    path, name = address or ("", "")
    try:
        file = os.open(path, os.O_WRONLY) if os.readlink(path) == name else None
    except OSError:
        file = None
    try:
        yield Writer(file)
    finally:
        if file is not None:
            os.close(file)


Packed = tuple[Message, list[Place | Data]]  # without the arrays' bytes, and where they are, or they
WAITING = 2  # an actor with this many replies that nobody has taken stops: it bounds the memory
FIRST_NODE = 1000  # node ids are FIRST_NODE + client number, in every run


class Actor:
    """Holds the ClientApp in a process of its own and answers many messages per call."""

    def __init__(self, load: bytes, path: list[str], clients: int, run_config: Mapping[str, Any]) -> None:
        sys.path.extend(place for place in path if place not in sys.path)
        self.load, self.clients, self.run_config = load, clients, dict(run_config)
        self.app: ClientApp | None = None

    def prepare(self) -> str:
        """Import what the ClientApp needs; what is wrong with it, the first answer tells. Its host's id."""
        with suppress(Exception):
            self.app = cloudpickle.loads(self.load)()
            compiles()
        return str(ray.get_runtime_context().get_node_id())

    def answer(
        self, messages: Sequence[Message], arrays: Sequence[dict[str, Any]], slots: Sequence[Address]
    ) -> Iterator[Packed]:
        """Replies to messages one by one until the call is cancelled; arrays in ``slots`` that have room."""
        for reply, slot in zip(self._replies(messages, arrays), itertools.cycle(slots or [None])):
            with writing(slot) as writer:
                packed = pack(reply, writer)
            yield packed

    def sum(self, messages: Sequence[Message], arrays: Sequence[dict[str, Any]], *given: Any) -> Summed:
        """The sum of the replies to messages after those before them, see :func:`.relay.receive`."""
        clients = [message.metadata.dst_node_id - FIRST_NODE for message in messages]
        return receive(self._replies(messages, arrays), clients, *given)

    def _replies(self, messages: Sequence[Message], arrays: Sequence[dict[str, Any]]) -> Iterator[Message]:
        references = {reference for named in arrays for reference in named.values()}
        records = {reference: ray.get(reference) for reference in references}
        for message, named in zip(messages, arrays, strict=True):
            if ray.get_runtime_context().is_canceled():
                return
            yield self._answer(message, {name: records[place] for name, place in named.items()})

    def _answer(self, message: Message, arrays: dict[str, ArrayRecord]) -> Message:
        node = message.metadata.dst_node_id
        context = Context(
            run_id=message.metadata.run_id,
            node_id=node,
            node_config={"partition-id": node - FIRST_NODE, "num-partitions": self.clients},
            state=RecordDict(),
            run_config=dict(self.run_config),
        )
        for name, record in arrays.items():
            message.content[name] = ArrayRecord(dict(record))  # pack may empty it
        try:
            if self.app is None:
                self.app = cloudpickle.loads(self.load)()
            return self.app(message, context)
        except Exception as error:
            failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}: {error}")
            return Message(failure, reply_to=message)


def pack(message: Message, writer: Writer) -> Packed:
    """Take the arrays' bytes out of a message: into a slot, or for Ray to copy as they are, unpickled."""
    buffers = []
    for array in _arrays(message):
        buffers.append(writer.write(np.frombuffer(array.data, np.uint8)))
        array.data = b""
    return message, buffers


def unpack(packed: Packed, slot: Slot | None) -> Message:
    """Inverse of :func:`pack`, copied out of the slot that the writer had."""
    message, buffers = packed
    for array, buffer in zip(_arrays(message), buffers, strict=True):
        array.data = buffer.tobytes() if slot is None or isinstance(buffer, np.ndarray) else slot.read(buffer)
    return message


def _arrays(message: Message) -> list[Array]:
    records = message.content.values() if message.has_content() else ()
    return [array for record in records if isinstance(record, ArrayRecord) for array in record.values()]


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
