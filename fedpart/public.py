"""Public: all that ``import fedpart`` offers."""

from fedpart.api import federate
from fedpart.centralised.fit import Training, TrainingError, TrainingReport, fit
from fedpart.centralised.settings import TrainingSettings
from fedpart.data.dataset import Dataset
from fedpart.engines.personal import Personal, personalise
from fedpart.federated.federation import Federation
from fedpart.federated.pace.settings import DeviceSettings
from fedpart.federated.protocol import Protocol
from fedpart.federated.report import RoundReport
from fedpart.federated.settings import FederationSettings
from fedpart.methods import METHODS, Method
from fedpart.nn.hyperparameters import (
    AffineAugmentation,
    ColourJitter,
    ConcreteDropout,
    ConcreteMask,
    Cutout,
    FixedMask,
    FrequencyMask,
    GaussianBlur,
    HyperModule,
    InputNoise,
    LoraGate,
    RandomFlip,
    TimeMask,
    TimeShift,
    TokenDropout,
    fold_lora,
    learn_lora,
)
from fedpart.nn.layers import replace_batchnorm
from fedpart.partition.nodes import NodePartition
from fedpart.partition.partition import Partition, RandomPartition, SeparateNetworks
from fedpart.partition.space import ParameterSpace
from fedpart.randomness.noise import normal, uniform
from fedpart.task.task import Batch, Task
from fedpart.training.local import LocalSettings
from fedpart.training.optimisers import AdamSettings, AdamWSettings, SGDSettings
from fedpart.training.result import Result, load
from fedpart.updates.errors import ClientError
from fedpart.updates.stages.clip import ClipSettings
from fedpart.updates.stages.privacy import PrivacySettings

__all__ = [
    "METHODS", "AdamSettings", "AdamWSettings", "AffineAugmentation", "Batch", "ClientError",
    "ClipSettings", "ColourJitter", "ConcreteDropout", "ConcreteMask", "Cutout", "Dataset",
    "DeviceSettings", "Federation", "FederationSettings", "FixedMask", "FrequencyMask", "GaussianBlur",
    "HyperModule", "InputNoise", "LocalSettings", "LoraGate", "Method", "NodePartition", "ParameterSpace",
    "Partition", "Personal", "PrivacySettings", "Protocol", "RandomFlip", "RandomPartition", "Result",
    "RoundReport", "SGDSettings", "SeparateNetworks", "Task", "TimeMask", "TimeShift", "TokenDropout",
    "Training", "TrainingError", "TrainingReport", "TrainingSettings", "federate", "fit", "fold_lora",
    "learn_lora", "load", "normal", "personalise", "replace_batchnorm", "uniform",
]  # fmt: skip
