"""Workarounds: what reaches into Flower's private modules, each part with the fault of Flower 1.41 behind it.

Every part names the tests, in ``tests/fedpart/flower/workarounds/``, that fail once Flower has mended the
fault, so that the part can be deleted. ``test_private_names.py`` there lists the private names in use.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.serverapp import Grid


def guarded(grid: Grid, limit: int) -> Grid:
    """The grid to use in place of ``grid``: a :class:`.GuardedGrid` if it leads to a SuperLink, else itself.

    Args:
        grid: Flower's, or any other.
        limit: bytes that a reply may have.
    """
    if "flwr.superlink.grid.http_grid" not in sys.modules:  # it is in ServerApps; importing it takes seconds
        return grid
    from flwr.superlink.grid.http_grid import HttpGrid

    from fedpart.flower.workarounds.grid import GuardedGrid

    return GuardedGrid(grid, limit) if isinstance(grid, HttpGrid) else grid
