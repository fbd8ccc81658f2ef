"""Sharing: weights composed from numbers that several layers, and networks, have in common."""

from fedpart.partition.sharing.composed import (
    SHARINGS,
    Composed,
    Penalised,
    Sharing,
    plain_name,
    sharing_of,
    within,
)
from fedpart.registry import import_files

import_files(__name__, __path__)

__all__ = ["SHARINGS", "Composed", "Penalised", "Sharing", "plain_name", "sharing_of", "within"]
