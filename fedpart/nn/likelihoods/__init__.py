"""Likelihoods: p(y | outputs), one file each; all their parameters are hyperparameters."""

from fedpart.nn.likelihoods.base import LIKELIHOODS, Likelihood
from fedpart.nn.likelihoods.classification import Classification
from fedpart.nn.likelihoods.ensemble import EnsembleClassification
from fedpart.nn.likelihoods.from_model import FromModel
from fedpart.nn.likelihoods.gaussian import Gaussian
from fedpart.nn.likelihoods.multilabel import MultiLabel
from fedpart.nn.likelihoods.ordinal import Ordinal
from fedpart.nn.likelihoods.poisson import Poisson
from fedpart.nn.likelihoods.tokens import TokenClassification

__all__ = [
    "LIKELIHOODS",
    "Classification",
    "EnsembleClassification",
    "FromModel",
    "Gaussian",
    "Likelihood",
    "MultiLabel",
    "Ordinal",
    "Poisson",
    "TokenClassification",
]
