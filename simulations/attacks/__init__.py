"""Attacks: what hostile clients of simulations do; a file that registers itself is known by its name."""

import importlib
import pkgutil

from simulations.attacks.base import ATTACKS, Attack

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["ATTACKS", "Attack"]
