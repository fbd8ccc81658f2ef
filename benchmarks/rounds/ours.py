"""The workloads of ``bench`` for this project, and their rounds on Ray."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import torch

import fedpart
from benchmarks.rounds.networks import network
from benchmarks.rounds.workloads import Workload
from fedpart import AdamSettings, AffineAugmentation, Dataset, Federation, SGDSettings


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


def rounds_over(grid: Any, federation: Federation) -> Callable[[], object]:
    """A round of the Flower strategy over a grid whose clients are :func:`load`'s, each time it is called."""
    from fedpart.flower.strategy import FedPart

    logging.getLogger("flwr").setLevel(logging.WARNING)
    strategy = FedPart(federation)
    return lambda: strategy.run(grid, federation.round + 1)


def run_config(workload: Workload) -> dict[str, str]:
    """From which :func:`load`'s clients build the workload."""
    return {"workload": json.dumps(asdict(workload))}


def _build(config: Mapping[str, Any]) -> SimpleNamespace:
    torch.set_num_threads(1)
    workload = Workload.from_dict(json.loads(config["workload"]))
    return SimpleNamespace(protocol=make_protocol(workload), shards=make_shards(workload))


def load() -> Any:
    from fedpart.flower.client import make_client_app

    return make_client_app(_build)


def rounds_on_ray(workload: Workload) -> Callable[[], object]:
    """A round of the Flower strategy and client app on two Ray actors of ours, each time it is called."""
    from simulations.ray.grid import RayGrid

    grid = RayGrid(load, workload.clients, run_config(workload), workers=2)
    return rounds_over(grid, Federation(make_protocol(workload)))
