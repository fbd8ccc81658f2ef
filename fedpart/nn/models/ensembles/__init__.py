"""Ensembles: several networks in one, which answer ``[B, M, K]``; a file for each kind."""

from fedpart.nn.models.ensembles.batch import Mimo as Mimo
from fedpart.nn.models.ensembles.batch import batch_ensemble as batch_ensemble
from fedpart.nn.models.ensembles.ensemble import ENSEMBLES as ENSEMBLES
from fedpart.nn.models.ensembles.ensemble import Ensemble as Ensemble
from fedpart.nn.models.ensembles.ensemble import ensemble as ensemble
from fedpart.nn.models.ensembles.slimmable import UniversallySlimmable as UniversallySlimmable
from fedpart.nn.models.ensembles.slimmable import slimmable as slimmable
