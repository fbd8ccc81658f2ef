"""Machine code that numba makes of kernels, where it is installed and may compile."""

import importlib.util
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

Kernel = Callable[..., Any]
_ROOM = Path(__file__).parent


@cache
def compiles() -> bool:
    """Whether there are kernels. numba is imported to see, which takes a second."""
    if importlib.util.find_spec("numba") is None:
        return False
    from numba import config

    return not config.DISABLE_JIT  # type: ignore[attr-defined]


def jit(function: Kernel, inline: str = "never") -> Kernel:
    """Decorator: compile at the first call; machine code is kept on the disk, if there is a place for it.

    It is made anew when any kernel's module has changed, since instructions may come from there.
    """
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
