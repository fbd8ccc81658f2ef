"""Ensembles: several networks in one, which answer ``[B, M, K]``; a file for each kind."""

from fedpart.models.ensembles.batch import batch_ensemble
from fedpart.models.ensembles.building import ensemble
from fedpart.models.ensembles.composed import composed
from fedpart.models.ensembles.ensemble import ENSEMBLES, Ensemble
from fedpart.models.ensembles.mimo import Mimo
from fedpart.models.ensembles.slimmable import slimmable
from fedpart.models.ensembles.universally_slimmable import UniversallySlimmable

__all__ = [
    "ENSEMBLES",
    "Ensemble",
    "Mimo",
    "UniversallySlimmable",
    "batch_ensemble",
    "composed",
    "ensemble",
    "slimmable",
]
