"""The kernels of :class:`.LocalSGD`: one pass over memory, for which torch takes three."""

from __future__ import annotations

from typing import Any

from fedpart.kernels.door import jit


@jit
def add_scaled(total: Any, vector: Any, first: Any, second: Any) -> None:
    """``total += vector * first * second``, each product and the sum rounded, as torch does one by one.

    Args:
        total: ``[N]``, written.
        vector: ``[N]``.
        first, second: scalars of the arrays' type.
    """
    for i in range(total.size):
        total[i] += (vector[i] * first) * second


@jit
def scale(out: Any, vector: Any, first: Any, second: Any) -> None:
    """``out = vector * first * second``; see ``add_scaled``."""
    for i in range(out.size):
        out[i] = (vector[i] * first) * second
