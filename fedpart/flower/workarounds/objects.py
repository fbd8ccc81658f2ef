"""Messages outside of Flower's own runtimes: made, measured, and read from the objects that they travel as.

The faults: Flower raises whatever the reading of foreign bytes raises, which ends the run, puts arrays
together from as many chunks as they claim, and makes objects of as many names as a record has: a million of
them take 40 seconds and a gigabyte. A message takes its run and its sender from an identity that only
Flower's runtimes give to a process, and does not tell its size: Flower's own serialisation copies all of it.
"""

import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, Metadata, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.constant import ErrorCode as ErrorCode
from flwr.common.serde import array_to_proto, message_to_proto, recorddict_to_proto
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_type_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run as Run
from flwr.supercore.task_identity import TaskIdentity

from fedpart.checks import require
from fedpart.updates.errors import brief

RUN_ID = 1


def claim_identity(run_id: int = RUN_ID) -> None:
    """Let this process make messages, as the server of a run."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, SUPERLINK_NODE_ID


def identify(message: Message, id: str) -> None:
    """Give a message its id."""
    message.metadata.__dict__["_message_id"] = id


def make_message(
    metadata: Metadata, content: RecordDict | None = None, error: Error | None = None
) -> Message:
    """A message with these metadata, and either content or an error."""
    kind: Any = Message
    made: Message = kind(metadata=metadata, content=content, error=error)
    return made


def message_bytes(message: Message) -> int:
    """Length of the message in Flower's protobuf form, to the byte; the arrays' data are not copied."""
    if message.has_error():
        return int(message_to_proto(message).ByteSize())
    size = _field(message_to_proto(make_message(message.metadata, RecordDict())).metadata.ByteSize())
    content = 0
    for name, record in message.content.items():
        if isinstance(record, ArrayRecord):
            items = sum(_field(_text(key) + _field(_array(array))) for key, array in record.items())
            content += _field(_text(name) + _field(items))
        else:
            content += recorddict_to_proto(RecordDict({name: record})).ByteSize()
    return size + _field(content)


def _array(array: Array) -> int:
    empty = Array(dtype=array.dtype, shape=array.shape, stype=array.stype, data=b"")
    return int(array_to_proto(empty).ByteSize()) + (_field(len(array.data)) if array.data else 0)


def _text(text: str) -> int:
    return _field(len(text.encode())) if text else 0


def _field(length: int) -> int:
    """A field of that length: a tag of one byte, the length as a varint, the bytes."""
    return 1 + max(1, -(-length.bit_length() // 7)) + length


OBJECTS = 10  # of a reply, besides the full chunks of its arrays; ours have 9 at most
RECORDS = {kind.__qualname__ for kind in (ArrayRecord, ConfigRecord, MetricRecord, RecordDict)}
RECORD_BYTES = 2**16  # of all of a reply's records together, without its arrays; ours have 1,000
UNREADABLE = 1000  # our code, beside Flower's, of an error that stands for a reply that cannot be read


class Unreadable(ValueError):
    """Why a reply is not read; a clause."""


def read_objects(metadata: Metadata, contents: dict[str, bytes], limit: int) -> Message:
    """A reply from the objects that it consists of; if that fails, an error of code ``UNREADABLE``."""
    try:
        parts = len(contents)
        check_size(_array_bytes(contents), limit)
        types = map(get_object_type_from_object_content, contents.values())
        records = (len(part) for part, kind in zip(contents.values(), types, strict=True) if kind in RECORDS)
        check_size(sum(records), RECORD_BYTES, " beside its arrays")  # names and values are an object each
        message = inflate_object_from_contents(metadata.message_id, contents)
        if not isinstance(message, Message):
            raise ValueError(f"it is of type {type(message).__name__}")
        if message.has_error():
            return make_message(metadata, error=message.error)
        arrays = [record for record in message.content.values() if isinstance(record, ArrayRecord)]
        require(len(message.content) + sum(map(len, arrays)) <= parts, "it has more names than parts")
        reply = make_message(metadata, content=message.content)
        message_bytes(reply)  # raises where it has no serialised form
        return reply
    except Unreadable as error:
        return unreadable(metadata, error)
    except Exception as error:  # whatever Flower, json and protobuf make of foreign bytes
        return unreadable(metadata, f"it cannot be read ({type(error).__name__}: {error})")


def unreadable(metadata: Metadata, reason: object) -> Message:
    """The error that stands for a reply that is not read."""
    return make_message(metadata, error=Error(UNREADABLE, brief(str(reason))))


def check_size(size: int, limit: int, where: str = "") -> None:
    """Refuse a reply of more bytes than the limit."""
    larger = f"it is larger than the {limit} bytes that a reply of this run may have{where}"
    require(size <= limit, larger, Unreadable)


def _array_bytes(contents: dict[str, bytes]) -> int:
    """Length of all arrays, put together from their chunks, each of which may be there more than once."""
    heads = {id: get_object_head_values_from_object_content(content) for id, content in contents.items()}
    total = 0
    for id, (kind, children, _) in heads.items():
        if kind == Array.__qualname__:
            whole = all(heads[child][0] == "ArrayChunk" for child in children)
            require(whole, "an array consists of something else than chunks")
            chunks = json.loads(get_object_body(contents[id], Array))["arraychunk_ids"]
            total += sum(len(contents[children[chunk]]) for chunk in chunks)
    return total
