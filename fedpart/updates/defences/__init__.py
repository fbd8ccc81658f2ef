"""Defences: what takes the place of a mean of clients; a file that registers itself is known by its name."""

import importlib
import pkgutil

from fedpart.updates.defences.base import DEFENCES, Defence

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["DEFENCES", "Defence"]
