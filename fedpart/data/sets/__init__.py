"""Data sets, one file each; a file in this folder that registers a loader is known by its name everywhere."""

import importlib
import pkgutil

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")
