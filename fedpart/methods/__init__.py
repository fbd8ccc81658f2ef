"""Methods: who trains what, and what follows from it; a file each, known by the name that it registers."""

from fedpart.methods.base import METHODS, CentralMethod, FederatedMethod, Method
from fedpart.registry import import_files

import_files(__name__, __path__)

__all__ = ["METHODS", "CentralMethod", "FederatedMethod", "Method"]
