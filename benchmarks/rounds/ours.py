"""The workloads of ``bench`` for this project."""

from typing import Any

import torch

import fedpart
from benchmarks.rounds.networks import network
from benchmarks.rounds.workloads import Workload
from fedpart import AdamSettings, AffineAugmentation, Dataset, SGDSettings


def make_protocol(workload: Workload, **task: Any) -> fedpart.Protocol:
    """What server and clients of a workload agree on; ``task`` goes to :class:`fedpart.Task`."""
    torch.manual_seed(workload.seed)
    learned = fedpart.Task(
        network(workload),
        transforms=[] if workload.affine is None else [AffineAugmentation("centred", workload.affine)],
        samples=workload.samples,
        **{"channels_last": True, **task},
    )
    psi_batch = workload.psi_batch or "shard"
    settings = fedpart.FederationSettings(
        clients=workload.clients,
        cohort=workload.cohort,
        chunks=workload.chunks,
        method="partitioned" if workload.partitioned else "fedavg",
        method_options={} if workload.partitioned else {"augment": True},
        local=fedpart.LocalSettings(workload.learning_rate, workload.batch_size, psi_batch=psi_batch),
        server=(AdamSettings if workload.server == "adam" else SGDSettings)(workload.server_learning_rate),
        server_psi=AdamSettings(workload.psi_learning_rate),
        seed=workload.seed,
    )
    return fedpart.Protocol(learned, settings)


def make_shards(workload: Workload) -> list[Dataset]:
    return [Dataset(*workload.shard(client)) for client in range(workload.clients)]
