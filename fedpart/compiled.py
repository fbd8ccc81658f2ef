"""Kernels that numba compiles, for what torch does in many passes over memory; numba need not be there."""

from __future__ import annotations

import importlib.util
import inspect
import zlib
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

Kernel = Callable[..., Any]


@cache
def load(module: str) -> Any:
    """A module of kernels, imported when it is first needed, which takes a second; None without numba."""
    return importlib.import_module(module) if importlib.util.find_spec("numba") else None


def jit(function: Kernel, uses: tuple[ModuleType, ...] = ()) -> Kernel:
    """Decorator: compile at the first call; machine code is kept on the disk, if there is a place for it.

    Args:
        function: is compiled anew when its file has changed.
        uses: other modules whose changes count as well, since instructions come from there.
    """
    import numba

    if uses:
        read = "".join(map(inspect.getsource, uses)).encode()
        function.__qualname__ += f"_{zlib.crc32(read):08x}"  # a part of the file's name
    compiled: Callable[..., Any] = numba.njit
    try:
        return compiled(function, cache=True, nogil=True)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder can be written
        return compiled(function, nogil=True)  # type: ignore[no-any-return]
