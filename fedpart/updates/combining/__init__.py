"""Combining: ways to combine clients, with any method; a file that registers itself is known by its name."""

from fedpart.registry import import_files
from fedpart.updates.combining.base import COMBINATIONS, Combination

import_files(__name__, __path__)

__all__ = ["COMBINATIONS", "Combination"]
