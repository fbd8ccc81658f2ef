"""A federation over one's own network and data sets, as a type checker sees it."""

import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from fedpart import RoundReport, federate

data = TensorDataset(torch.rand(120, 4), torch.randint(3, (120,)))
clients = [Subset(data, range(client, 100, 10)) for client in range(10)]
held_out = Subset(data, range(100, 120))


def watch(report: RoundReport) -> None:
    """Called at the end of every round."""
    print(report.round, report.train_loss)


result = federate(
    nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)),
    clients,
    rounds=2,
    cohort=5,
    chunks=(0.5, 0.5),
    local={"learning_rate": 0.1, "batch_size": 5},
    server={"name": "sgd", "learning_rate": 1.0},
    test=held_out,
    on_round=watch,
)
accuracy: float | None = result.test_accuracy
module: nn.Module = result.module()
