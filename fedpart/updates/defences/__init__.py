"""Defences: what takes the place of a mean of clients; a file that registers itself is known by its name."""

from fedpart.registry import import_files
from fedpart.updates.defences.base import DEFENCES, Defence

import_files(__name__, __path__)

__all__ = ["DEFENCES", "Defence"]
