"""Messages outside of Flower's own runtimes, for a grid that runs clients by itself; and their sizes.

The faults: a message takes its run and its sender from an identity that only Flower's runtimes give to a
process, and only they can give it an id, or another time. Without the identity it cannot be made. And a
message does not tell its size: to find it out by Flower's own serialisation copies all of it.

The tests: ``test_faults.py::test_messages_need_an_identity_that_nobody_else_can_give`` and, there,
``test_a_message_does_not_tell_its_size``.
"""

from typing import Any

from flwr.app import Array, ArrayRecord, Error, Message, Metadata, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.constant import ErrorCode as ErrorCode
from flwr.common.serde import array_to_proto, message_to_proto, recorddict_to_proto
from flwr.supercore.run import Run as Run
from flwr.supercore.task_identity import TaskIdentity

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
    """Length of the message in Flower's protobuf form, to the byte.

    Equal to ``len(message_to_proto(message).SerializeToString())``, but the arrays' data, all but a few
    hundred bytes of it, are counted and not copied.
    """
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
