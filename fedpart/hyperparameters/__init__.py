"""Hyperparameters (psi): one file per kind; a ``Task`` also takes a module's own parameters as psi."""

from fedpart.hyperparameters.affine import AffineAugmentation
from fedpart.hyperparameters.base import TRANSFORMS, HyperModule
from fedpart.hyperparameters.dropout import ConcreteDropout
from fedpart.hyperparameters.images.blur import GaussianBlur
from fedpart.hyperparameters.images.colour import ColourJitter
from fedpart.hyperparameters.images.cutout import Cutout
from fedpart.hyperparameters.images.flip import RandomFlip
from fedpart.hyperparameters.mask import ConcreteMask, FixedMask
from fedpart.hyperparameters.noise import InputNoise
from fedpart.hyperparameters.signals.frequency_mask import FrequencyMask
from fedpart.hyperparameters.signals.time_mask import TimeMask
from fedpart.hyperparameters.signals.time_shift import TimeShift
from fedpart.hyperparameters.text.lora import LoraGate, fold_lora, learn_lora
from fedpart.hyperparameters.text.token_dropout import TokenDropout

__all__ = [
    "TRANSFORMS",
    "AffineAugmentation",
    "ColourJitter",
    "ConcreteDropout",
    "ConcreteMask",
    "Cutout",
    "FixedMask",
    "FrequencyMask",
    "GaussianBlur",
    "HyperModule",
    "InputNoise",
    "LoraGate",
    "RandomFlip",
    "TimeMask",
    "TimeShift",
    "TokenDropout",
    "fold_lora",
    "learn_lora",
]
