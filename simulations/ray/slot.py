"""Slots: memory in which actors hand over the arrays of their replies to a driver on the same machine."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

Address = tuple[str, str]  # path by which another process opens a slot, and what must be found there
Place = tuple[int, int]  # offset and length in a slot
Data = NDArray[np.uint8]


class Slot:
    """The arrays of a call's replies, as the driver sees them; its memory ends with the last who has it open.

    An object of 5 MB in Ray's store takes 4 ms of processors' time, of which copying it is a small part; a
    slot takes 1 ms.
    """

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
