"""Numbers of a table, in one pass over memory, for which torch takes two."""

from typing import Any

import torch
from torch import Tensor

from fedpart.kernels.compiling import jit

_UNSIGNED = {2: torch.uint16, 4: torch.uint32, 8: torch.uint64}  # by size in bytes


def look_up(table: Tensor, places: Tensor, out: Tensor) -> None:
    """See :func:`.look_up_kernel`."""
    entries, target = (flat.view(_UNSIGNED[flat.dtype.itemsize]).numpy() for flat in (table, out))
    _look_up(entries, places.view(torch.uint16).numpy(), target)


@jit
def _look_up(table: Any, places: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = table[places[i]]
