"""Likelihoods: p(y | outputs), one file each; all their parameters are hyperparameters."""

from fedpart.likelihoods.base import LIKELIHOODS, Likelihood
from fedpart.likelihoods.classification import Classification
from fedpart.likelihoods.ensemble import EnsembleClassification
from fedpart.likelihoods.from_model import FromModel
from fedpart.likelihoods.gaussian import Gaussian
from fedpart.likelihoods.multilabel import MultiLabel
from fedpart.likelihoods.ordinal import Ordinal
from fedpart.likelihoods.poisson import Poisson
from fedpart.likelihoods.tokens import TokenClassification

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
