"""Loggers: who gets a run's numbers while it runs; a file that registers itself is known by its name."""

import importlib
import pkgutil

from fedpart.loggers.base import LOGGERS, Logger, Loggers, RunInfo
from fedpart.loggers.logged import logged

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["LOGGERS", "Logger", "Loggers", "RunInfo", "logged"]
