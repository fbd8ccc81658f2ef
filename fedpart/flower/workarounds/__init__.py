"""Workarounds: what reaches into Flower's private modules, each part with the fault of Flower 1.42 behind it.

In ``tests/fedpart/flower/workarounds/``, ``test_faults.py`` and the tests ``test_flowers_own_...`` fail once
Flower has mended a fault, so that the part can be deleted. ``test_private_names.py`` looks for private names.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from flwr.serverapp import Grid
    from flwr.superlink.grid.http_grid import HttpGrid


def guarded(grid: Grid, limit: int) -> Grid:
    """A :class:`.GuardedGrid` if the grid leads to a SuperLink, else itself; replies have ``limit`` bytes."""
    if not is_deployed(grid):
        return grid
    from fedpart.flower.workarounds.grid import GuardedGrid

    return GuardedGrid(cast("HttpGrid", grid), limit)


def is_deployed(grid: Grid) -> bool:
    """Whether the grid leads to a SuperLink, so that clients are processes of others."""
    if "flwr.superlink.grid.http_grid" not in sys.modules:  # it is in ServerApps; importing it takes seconds
        return False
    from flwr.superlink.grid.http_grid import HttpGrid

    return isinstance(grid, HttpGrid)
