"""Machine code that numba makes of kernels, where it may; and memory that the C library keeps."""

import ctypes
import importlib.util
import os
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

Kernel = Callable[..., Any]
_ROOM = Path(__file__).parent
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of options in malloc.h
_KEPT, _LARGEST = 2**30, 2**25  # bytes; the second is as much as glibc allows


@cache
def compiles() -> bool:
    """Whether there are kernels. numba is imported to see, which takes a second."""
    if importlib.util.find_spec("numba") is None:
        return False
    from numba import config

    return not config.DISABLE_JIT  # type: ignore[attr-defined]


def jit(function: Kernel, inline: str = "never") -> Kernel:
    """Decorator: compile at the first call; machine code is kept on the disk, if there is a place for it.

    It is made anew when any kernel's module has changed, since instructions may come from there."""
    import numba

    function.__qualname__ += _version()  # a part of the file's name
    compiled: Callable[..., Any] = numba.njit
    try:
        return compiled(function, cache=True, nogil=True, inline=inline)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder can be written
        return compiled(function, nogil=True, inline=inline)  # type: ignore[no-any-return]


@cache
def _version() -> str:
    """Of all modules in the room of kernels."""
    read = b"".join(file.read_bytes() for file in sorted(_ROOM.rglob("*.py")))
    return f"_{zlib.crc32(read):08x}"


@cache
def keep_freed_memory() -> None:
    """Let this process keep up to a gigabyte that is free, for the next step, which asks for it again.

    Given back to the system, as glibc does by default, it returns page by page: a twentieth of the time of a
    round of the MNIST CNN. Nothing happens with another C library, or where the environment sets glibc's own.
    """
    if {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys():
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST)
    mallopt(_TRIM_THRESHOLD, _KEPT)
