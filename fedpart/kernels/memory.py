"""What the C library does with memory that is free for the moment."""

import ctypes
import os
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of options in malloc.h
_KEPT, _LARGEST = 2**30, 2**25  # bytes; the second is as much as glibc allows


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
