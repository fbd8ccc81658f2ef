"""The Ray actor in which a Flower ClientApp answers messages."""

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import cloudpickle
import numpy as np
import ray
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpart.flower.workarounds.objects import ErrorCode
from fedpart.kernels.compiling import compiles
from simulations.ray.slot import Address, Data, Place, Slot, Writer, writing

Packed = tuple[Message, list[Place | Data]]  # without the arrays' bytes, and where they are, or they
FIRST_NODE = 1000  # node ids are FIRST_NODE + client number, in every run


class Actor:
    """Holds the ClientApp in a process of its own and answers many messages per call.

    ``load`` comes pickled, to be unpickled where the driver's ``path`` is known.
    """

    def __init__(self, load: bytes, path: list[str], clients: int, run_config: Mapping[str, Any]) -> None:
        sys.path.extend(place for place in path if place not in sys.path)
        self.load, self.clients, self.run_config = load, clients, dict(run_config)
        self.app: ClientApp | None = None

    def prepare(self) -> None:
        """Import what the ClientApp needs; what is wrong with it, the first answer tells."""
        with suppress(Exception):
            self.app = cloudpickle.loads(self.load)()
            compiles()

    def answer(
        self, messages: Sequence[Message], arrays: Sequence[dict[str, Any]], slots: Sequence[Address]
    ) -> Iterator[Packed]:
        """Replies to ``messages``, one by one, until the call is cancelled.

        Their arrays are in ``slots``, used in turn, as far as there is room; ``arrays[i]`` are references to
        the records of message i, by name.
        """
        references = {reference for own in arrays for reference in own.values()}
        records = {reference: ray.get(reference) for reference in references}
        for message, own, slot in zip(messages, arrays, itertools.cycle(slots or [None])):
            if ray.get_runtime_context().is_canceled():
                return
            reply = self._answer(message, {name: records[one] for name, one in own.items()})
            with writing(slot) as writer:
                packed = pack(reply, writer)
            yield packed

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
    return [array for one in records if isinstance(one, ArrayRecord) for array in one.values()]
