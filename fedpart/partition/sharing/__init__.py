"""Sharing: weights composed from numbers that several layers, and networks, have in common."""

import importlib
import pkgutil

from fedpart.partition.sharing.composed import (
    SHARINGS,
    Composed,
    Penalised,
    Sharing,
    plain_name,
    sharing_of,
    within,
)

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["SHARINGS", "Composed", "Penalised", "Sharing", "plain_name", "sharing_of", "within"]
