"""fedpart: federated hyperparameter optimisation in one training run.

Partitioned networks (Mlodozeniec, Reisser, Louizos, ICLR 2023): model and differentiable hyperparameters are
learned together, without validation data and with less upload than FedAvg.
"""

from fedpart.api import Result, federate
from fedpart.data.dataset import Dataset
from fedpart.executor import ClientError
from fedpart.federation import Federation, RoundReport
from fedpart.hyperparameters import AffineAugmentation, ConcreteDropout, HyperModule
from fedpart.methods import METHODS, Method
from fedpart.noise import normal, uniform
from fedpart.optim import AdamSettings
from fedpart.partition import Partition
from fedpart.protocol import Protocol
from fedpart.settings import FederationSettings, LocalSettings
from fedpart.space import ParameterSpace
from fedpart.task import Batch, Task

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "AdamSettings",
    "AffineAugmentation",
    "Batch",
    "ClientError",
    "ConcreteDropout",
    "Dataset",
    "Federation",
    "FederationSettings",
    "HyperModule",
    "LocalSettings",
    "Method",
    "ParameterSpace",
    "Partition",
    "Protocol",
    "Result",
    "RoundReport",
    "Task",
    "federate",
    "normal",
    "uniform",
]
