"""Ensembles: several networks in one, which answer ``[B, M, K]``; a file for each kind."""

from fedpart.nn.models.ensembles.batch import batch_ensemble
from fedpart.nn.models.ensembles.building import ensemble
from fedpart.nn.models.ensembles.ensemble import ENSEMBLES, Ensemble
from fedpart.nn.models.ensembles.mimo import Mimo
from fedpart.nn.models.ensembles.slimmable import slimmable
from fedpart.nn.models.ensembles.universally_slimmable import UniversallySlimmable

__all__ = [
    "ENSEMBLES",
    "Ensemble",
    "Mimo",
    "UniversallySlimmable",
    "batch_ensemble",
    "ensemble",
    "slimmable",
]
