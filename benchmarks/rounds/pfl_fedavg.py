"""Rounds of apple's pfl as it ships: SimulatedBackend, FederatedAveraging, PyTorchModel and torch's Adam."""

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor

from benchmarks.rounds.networks import Model, network, plain
from benchmarks.rounds.workloads import Workload


class Classifier(Model):
    """The workload's model, with what pfl asks of a module."""

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        with torch.no_grad():
            return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class TimedPfl:
    """Rounds of pfl's simulation."""

    def __init__(self, workload: Workload, device: str = "cpu") -> None:
        torch.manual_seed(workload.seed)
        np.random.seed(workload.seed)
        contiguous, shared = torch.contiguous_format, plain(network(workload))
        module = Classifier(shared, workload.samples, workload.affine, contiguous).to(device)
        for parameter in module.psi:
            parameter.requires_grad_(False)
        kind = torch.optim.Adam if workload.server == "adam" else torch.optim.SGD
        server = kind(module.weights, workload.server_learning_rate)
        self.model = PyTorchModel(module, torch.optim.SGD, server)
        shards = map(workload.shard, range(workload.clients))
        self.shards = [(x.to(device), y.to(device)) for x, y in shards]
        users = [PyTorchTensorDataset(shard, str(client)) for client, shard in enumerate(self.shards)]
        sampler = get_user_sampler("random", list(range(workload.clients)))
        data = FederatedDataset(lambda user: users[user], sampler)
        self.backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
        self.algorithm, self.workload, self.done = FederatedAveraging(), workload, 0
        self.local = NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=workload.learning_rate,
            local_batch_size=workload.batch_size,
        )

    def run_round(self) -> None:
        self.done += 1
        params = NNAlgorithmParams(
            central_num_iterations=self.done,  # of the whole run: this call does the last of them
            evaluation_frequency=10**9,  # the first round alone, which is not timed
            train_cohort_size=self.workload.cohort,
            val_cohort_size=0,
        )
        self.algorithm.run(params, self.backend, self.model, self.local)
