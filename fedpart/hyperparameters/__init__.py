"""Hyperparameters (psi): one file per kind; a ``Task`` also takes a module's own parameters as psi."""

from fedpart.hyperparameters.affine import AffineAugmentation
from fedpart.hyperparameters.base import HyperModule
from fedpart.hyperparameters.dropout import ConcreteDropout
from fedpart.hyperparameters.mask import ConcreteMask, FixedMask

__all__ = ["AffineAugmentation", "ConcreteDropout", "ConcreteMask", "FixedMask", "HyperModule"]
