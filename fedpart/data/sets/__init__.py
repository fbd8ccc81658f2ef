"""Data sets, one file each; a file in this folder that registers a loader is known by its name everywhere."""

from fedpart.registry import import_files

import_files(__name__, __path__)
