"""Likelihoods: p(y | outputs); all their parameters are hyperparameters."""

from fedpart.nn.likelihoods.base import LIKELIHOODS as LIKELIHOODS
from fedpart.nn.likelihoods.base import FromModel as FromModel
from fedpart.nn.likelihoods.base import Likelihood as Likelihood
from fedpart.nn.likelihoods.classification import Classification as Classification
from fedpart.nn.likelihoods.classification import MultiLabel as MultiLabel
from fedpart.nn.likelihoods.classification import TokenClassification as TokenClassification
from fedpart.nn.likelihoods.ensemble import EnsembleClassification as EnsembleClassification
from fedpart.nn.likelihoods.regression import Gaussian as Gaussian
from fedpart.nn.likelihoods.regression import Ordinal as Ordinal
from fedpart.nn.likelihoods.regression import Poisson as Poisson
