"""Methods: who trains what, and what follows from it; a file each, known by the name that it registers."""

import importlib
import pkgutil

from fedpart.methods.base import METHODS, CentralMethod, FederatedMethod, Method

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["METHODS", "CentralMethod", "FederatedMethod", "Method"]
