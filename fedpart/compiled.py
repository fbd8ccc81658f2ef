"""Kernels that numba compiles, for what torch does in many passes over memory; numba need not be there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

Kernel = Callable[..., Any]


@cache
def load(module: str) -> Any:
    """A module of kernels, imported when it is first needed, which takes a second; None without numba."""
    return importlib.import_module(module) if importlib.util.find_spec("numba") else None


def jit(function: Kernel) -> Kernel:
    """Decorator: compile at the first call; machine code is kept on the disk, if there is a place for it."""
    import numba

    compiled: Callable[..., Any] = numba.njit
    try:
        return compiled(function, cache=True, nogil=True)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder can be written
        return compiled(function, nogil=True)  # type: ignore[no-any-return]
