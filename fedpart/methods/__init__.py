"""Methods, one file each; a file in this folder that registers itself is known by its name everywhere."""

import importlib
import pkgutil

from fedpart.methods.base import METHODS, Method

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["METHODS", "Method"]
