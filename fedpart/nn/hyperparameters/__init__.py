"""Hyperparameters (psi): one file per kind; a ``Task`` also takes a module's own parameters as psi."""

from fedpart.nn.hyperparameters.affine import AffineAugmentation
from fedpart.nn.hyperparameters.base import TRANSFORMS, HyperModule
from fedpart.nn.hyperparameters.dropout import ConcreteDropout
from fedpart.nn.hyperparameters.images.blur import GaussianBlur
from fedpart.nn.hyperparameters.images.colour import ColourJitter
from fedpart.nn.hyperparameters.images.cutout import Cutout
from fedpart.nn.hyperparameters.images.flip import RandomFlip
from fedpart.nn.hyperparameters.mask import ConcreteMask, FixedMask
from fedpart.nn.hyperparameters.noise import InputNoise
from fedpart.nn.hyperparameters.signals.frequency_mask import FrequencyMask
from fedpart.nn.hyperparameters.signals.time_mask import TimeMask
from fedpart.nn.hyperparameters.signals.time_shift import TimeShift
from fedpart.nn.hyperparameters.text.lora import LoraGate, fold_lora, learn_lora
from fedpart.nn.hyperparameters.text.token_dropout import TokenDropout

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
