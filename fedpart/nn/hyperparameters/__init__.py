"""Hyperparameters (psi), a file for each kind; a ``Task`` also takes a module's own parameters as psi."""

from fedpart.nn.hyperparameters.affine import AffineAugmentation as AffineAugmentation
from fedpart.nn.hyperparameters.base import TRANSFORMS as TRANSFORMS
from fedpart.nn.hyperparameters.base import HyperModule as HyperModule
from fedpart.nn.hyperparameters.dropout import ConcreteDropout as ConcreteDropout
from fedpart.nn.hyperparameters.dropout import TokenDropout as TokenDropout
from fedpart.nn.hyperparameters.images import ColourJitter as ColourJitter
from fedpart.nn.hyperparameters.images import Cutout as Cutout
from fedpart.nn.hyperparameters.images import GaussianBlur as GaussianBlur
from fedpart.nn.hyperparameters.images import RandomFlip as RandomFlip
from fedpart.nn.hyperparameters.inputs import ConcreteMask as ConcreteMask
from fedpart.nn.hyperparameters.inputs import FixedMask as FixedMask
from fedpart.nn.hyperparameters.inputs import InputNoise as InputNoise
from fedpart.nn.hyperparameters.lora import LoraGate as LoraGate
from fedpart.nn.hyperparameters.lora import fold_lora as fold_lora
from fedpart.nn.hyperparameters.lora import learn_lora as learn_lora
from fedpart.nn.hyperparameters.signals import FrequencyMask as FrequencyMask
from fedpart.nn.hyperparameters.signals import TimeMask as TimeMask
from fedpart.nn.hyperparameters.signals import TimeShift as TimeShift
