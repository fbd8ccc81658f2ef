"""Codecs: the bytes in which changes of weights travel; a file that registers itself is known by its name."""

import importlib
import pkgutil

from fedpart.updates.codecs.base import CODECS, Codec

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["CODECS", "Codec"]
