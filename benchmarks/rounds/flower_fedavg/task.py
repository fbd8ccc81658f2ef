"""The network, the data and the training of a client."""

from __future__ import annotations

import json
import os

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.rounds.workloads import Workload


class Net(nn.Module):
    """The MNIST CNN."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5, padding=2)
        self.conv2 = nn.Conv2d(20, 50, 5, padding=2)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(50 * 7 * 7, 500)
        self.fc2 = nn.Linear(500, 50)
        self.fc3 = nn.Linear(50, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc3(F.relu(self.fc2(x)))


def workload() -> Workload:
    """What the server's process has put into the environment, which Ray's workers inherit."""
    return Workload.from_dict(json.loads(os.environ["FEDPART_BENCH_WORKLOAD"]))


_loaders: dict[int, DataLoader] = {}


def load_data(partition_id: int) -> DataLoader:
    """The client's data, made once per process."""
    if partition_id not in _loaders:
        chosen = workload()
        dataset = TensorDataset(*chosen.shard(partition_id))
        _loaders[partition_id] = DataLoader(dataset, batch_size=chosen.batch_size, shuffle=True)
    return _loaders[partition_id]


def train(net: nn.Module, loader: DataLoader, learning_rate: float) -> float:
    """One epoch; the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    net.train()
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)
