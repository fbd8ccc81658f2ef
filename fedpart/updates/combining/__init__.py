"""Combining: ways to combine clients, with any method; a file that registers itself is known by its name."""

import importlib
import pkgutil

from fedpart.updates.combining.base import COMBINATIONS, Combination

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["COMBINATIONS", "Combination"]
