"""Loggers: who gets a run's numbers while it runs; a file that registers itself is known by its name."""

from fedpart.loggers.base import LOGGERS, Logger, Loggers, RunInfo
from fedpart.loggers.logged import logged
from fedpart.registry import import_files

import_files(__name__, __path__)

__all__ = ["LOGGERS", "Logger", "Loggers", "RunInfo", "logged"]
