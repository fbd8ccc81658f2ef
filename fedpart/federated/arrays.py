"""Arrays of messages: which are expected, and how they are read without trusting what they declare."""

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpart.updates.errors import Refusal
from fedpart.updates.update import check_form

HEADER = 1000  # characters of an array's header at most; ours have about 60


class Form(NamedTuple):
    """Length and dtype of an array of a message."""

    size: int
    dtype: np.dtype[Any]


def npy_bytes(array: NDArray[Any]) -> bytes:
    """What ``numpy.save`` writes for ``array [n]``, in one copy where it makes several."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    return b"".join((head.getvalue(), array.view(np.uint8).data))


def read_npy(name: str, data: bytes, form: Form) -> NDArray[Any]:
    """An array of that form as :func:`npy_bytes` leaves it, copied.

    What the data declare is compared with what is expected and with their length before memory is asked for.
    Python objects, which would have to be unpickled, are refused as any other dtype.
    """
    stream = io.BytesIO(data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("it is not of format 1.0")
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=HEADER)
    except Exception as error:  # whatever numpy makes of foreign bytes
        raise Refusal("malformed", f"its array {name} cannot be read ({error})") from error
    check_form(name, shape, dtype, *form)
    there, wanted = len(data) - stream.tell(), form.size * dtype.itemsize
    if there != wanted:
        raise Refusal("size", f"its array {name} cannot be read (it has {there} bytes of {wanted})")
    return np.frombuffer(data, dtype, form.size, stream.tell()).copy()


def check_arrays(arrays: Mapping[str, NDArray[Any]], forms: Mapping[str, Form]) -> None:
    """Refuse arrays of other names or forms, with a :class:`.Refusal`."""
    check_names(arrays, forms)
    for name, form in forms.items():
        check_form(name, arrays[name].shape, arrays[name].dtype, *form)


def check_names(arrays: Mapping[str, Any], forms: Mapping[str, Form]) -> None:
    """Refuse arrays by other names than those of ``forms``."""
    if set(arrays) != set(forms):
        few = sorted(name[:40] for name in arrays)[:5]
        reason = f"it holds the arrays {few}, {len(arrays)} of them, where {sorted(forms)} are expected"
        raise Refusal("partitions", reason)
