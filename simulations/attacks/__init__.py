"""Attacks: what hostile clients of simulations do; a file that registers itself is known by its name."""

from fedpart.registry import import_files
from simulations.attacks.base import ATTACKS, Attack

import_files(__name__, __path__)

__all__ = ["ATTACKS", "Attack"]
