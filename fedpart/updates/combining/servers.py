"""Servers that step by moments (Reddi et al. 2021, Adaptive Federated Optimization), or with momentum."""

from fedpart.training.optimisers import AdagradSettings, SGDSettings, YogiSettings
from fedpart.updates.combining.base import COMBINATIONS

COMBINATIONS.register("adagrad")(AdagradSettings)
COMBINATIONS.register("yogi")(YogiSettings)


@COMBINATIONS.register("fedavgm")
def fedavgm(learning_rate: float = 1.0, momentum: float = 0.9) -> SGDSettings:
    """FedAvgM (Hsu et al. 2019): the server steps along the mean change with momentum."""
    return SGDSettings(learning_rate, momentum)
