"""Locks: one process at a time in a folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep other processes out of a folder, until the end or until this process dies."""
    descriptor = lock(path)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def lock(path: Path) -> int | None:
    """Keep other processes out of the folder until closed, or until this process dies."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise FileExistsError(
                f"Another process is running in {path}; wait for it, or choose another folder."
            ) from None
        return None  # a file system without locks
    return descriptor
