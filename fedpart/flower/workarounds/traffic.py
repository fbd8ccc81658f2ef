"""How many bytes a message takes on its way, without building it twice.

The fault: a message does not tell its size, and to find it out by Flower's own serialisation copies all of
it.

The test: ``test_faults.py::test_a_message_does_not_tell_its_size``.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common.serde import array_to_proto, message_to_proto, recorddict_to_proto

from fedpart.flower.workarounds.outside import make_message


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
