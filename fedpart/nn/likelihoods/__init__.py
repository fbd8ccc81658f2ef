"""Likelihoods: p(y | outputs), one file each; all their parameters are hyperparameters."""

from fedpart.nn.likelihoods.base import LIKELIHOODS as LIKELIHOODS
from fedpart.nn.likelihoods.base import Likelihood as Likelihood
from fedpart.nn.likelihoods.classification import Classification as Classification
from fedpart.nn.likelihoods.ensemble import EnsembleClassification as EnsembleClassification
from fedpart.nn.likelihoods.from_model import FromModel as FromModel
from fedpart.nn.likelihoods.gaussian import Gaussian as Gaussian
from fedpart.nn.likelihoods.multilabel import MultiLabel as MultiLabel
from fedpart.nn.likelihoods.ordinal import Ordinal as Ordinal
from fedpart.nn.likelihoods.poisson import Poisson as Poisson
from fedpart.nn.likelihoods.tokens import TokenClassification as TokenClassification
