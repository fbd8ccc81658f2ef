"""Kernels that take one pass over memory, for which torch takes several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedpart.kernels.compiling import jit

_UNSIGNED = {2: torch.uint16, 4: torch.uint32, 8: torch.uint64}  # by size in bytes


def look_up(table: Tensor, places: Tensor, out: Tensor) -> None:
    """``out[i] = table[places[i]]``.

    Args:
        table: ``[65536]``, in the order of 0..32767, -32768..-1.
        places: ``[N]``, int16.
        out: ``[N]``, written, of the table's type.
    """
    entries, target = (flat.view(_UNSIGNED[flat.dtype.itemsize]).numpy() for flat in (table, out))
    _look_up(entries, places.view(torch.uint16).numpy(), target)


@jit
def _look_up(table: Any, places: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = table[places[i]]


def scale(out: Tensor, vector: Tensor, first: float, second: float, add: bool) -> None:
    """``out = vector * first * second``, or that added to it, each step rounded, as torch does one by one.

    Args:
        out: ``[N]``, written.
        vector: ``[N]``, of the type of ``out``.
        first, second: the numbers, rounded to that type.
        add: to what ``out`` holds, or in place of it.
    """
    target = out.numpy()
    number = target.dtype.type
    kernel = _add_scaled if add else _scale
    kernel(target, vector.detach().numpy(), number(first), number(second))


@jit
def _add_scaled(total: Any, vector: Any, first: Any, second: Any) -> None:
    for i in range(total.size):
        total[i] += (vector[i] * first) * second


@jit
def _scale(out: Any, vector: Any, first: Any, second: Any) -> None:
    for i in range(out.size):
        out[i] = (vector[i] * first) * second
