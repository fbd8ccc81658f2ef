"""Codecs: the bytes in which changes of weights travel; a file that registers itself is known by its name."""

from fedpart.registry import import_files
from fedpart.updates.codecs.base import CODECS, Codec

import_files(__name__, __path__)

__all__ = ["CODECS", "Codec"]
