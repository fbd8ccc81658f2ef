"""fedpart: federated hyperparameter optimisation in one training run.

Partitioned networks (Mlodozeniec, Reisser, Louizos, ICLR 2023): model and differentiable hyperparameters are
learned together, without validation data and with less upload than FedAvg.
"""

from fedpart.api import federate
from fedpart.data.dataset import Dataset
from fedpart.executor import ClientError
from fedpart.federation import Federation, RoundReport
from fedpart.hyperparameters import (
    AffineAugmentation,
    ConcreteDropout,
    ConcreteMask,
    FixedMask,
    HyperModule,
)
from fedpart.methods import METHODS, Method
from fedpart.noise import normal, uniform
from fedpart.optim import AdamSettings, AdamWSettings, SGDSettings
from fedpart.partition import Partition
from fedpart.protocol import Protocol
from fedpart.safeguards import ClipSettings, PrivacySettings
from fedpart.settings import FederationSettings, LocalSettings, TrainingSettings
from fedpart.space import ParameterSpace
from fedpart.state import Result
from fedpart.task import Batch, Task
from fedpart.training import Training, TrainingError, TrainingReport, fit

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "AdamSettings",
    "AdamWSettings",
    "AffineAugmentation",
    "Batch",
    "ClientError",
    "ClipSettings",
    "ConcreteDropout",
    "ConcreteMask",
    "Dataset",
    "Federation",
    "FederationSettings",
    "FixedMask",
    "HyperModule",
    "LocalSettings",
    "Method",
    "ParameterSpace",
    "Partition",
    "PrivacySettings",
    "Protocol",
    "Result",
    "RoundReport",
    "SGDSettings",
    "Task",
    "Training",
    "TrainingError",
    "TrainingReport",
    "TrainingSettings",
    "federate",
    "fit",
    "normal",
    "uniform",
]
