"""The engines of this project in ``bench``, each in a process of its own.

``python -m benchmarks.rounds.ours NAME``
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import torch

import fedpart
from benchmarks.rounds.timed import Run, Unavailable, seconds, serve
from benchmarks.rounds.workloads import Workload
from fedpart import AdamSettings, AffineAugmentation, Dataset, Federation, SGDSettings
from fedpart.engines import LocalEngine
from fedpart.nn.models import MODELS


def make_protocol(workload: Workload, **task: Any) -> fedpart.Protocol:
    """What server and clients of a workload agree on; ``task`` goes to :class:`fedpart.Task`."""
    torch.manual_seed(workload.seed)
    build = MODELS.resolve(workload.model)
    learned = fedpart.Task(
        build(num_classes=workload.classes, input_shape=workload.shape, dropout=workload.dropout),
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


class FlowerRounds:
    """Rounds of the Flower strategy, one at a time, over a grid whose clients are :func:`load`'s."""

    def __init__(self, federation: Federation, grid: Any) -> None:
        from fedpart.flower.strategy import FedPart

        logging.getLogger("flwr").setLevel(logging.WARNING)
        self.federation, self.grid, self.strategy = federation, grid, FedPart(federation)

    def run_round(self) -> None:
        self.strategy.run(self.grid, self.federation.round + 1)


def run_config(workload: Workload) -> dict[str, str]:
    """From which :func:`load`'s clients build the workload."""
    return {"workload": json.dumps(asdict(workload))}


def _build(config: Mapping[str, Any]) -> SimpleNamespace:
    torch.set_num_threads(1)
    workload = Workload.from_dict(json.loads(config["workload"]))
    return SimpleNamespace(protocol=make_protocol(workload), shards=make_shards(workload))


def load() -> Any:
    from benchmarks.rounds import ours  # not __main__: an actor has another
    from fedpart.flower.client import make_client_app

    return make_client_app(ours._build)


def timed(engine: LocalEngine | FlowerRounds) -> Run:
    return lambda rounds: {"seconds": [seconds(engine.run_round) for _ in range(rounds)]}


def _start(arguments: Mapping[str, Any]) -> Run:
    torch.set_num_threads(1)
    name, workload = sys.argv[1], Workload.from_dict(arguments["workload"])
    precision = "bf16" if name in ("local-fast", "local-fused") else "fp32"
    federation = Federation(make_protocol(workload, precision=precision))
    if name == "ray":
        from simulations.ray.grid import RayGrid

        grid = RayGrid(load, workload.clients, run_config(workload), workers=2)
        return timed(FlowerRounds(federation, grid))
    options: dict[str, Any] = {"local-workers2": {"workers": 2}, "local-fused": {"execution": "fused"}}
    try:
        return timed(LocalEngine(federation, make_shards(workload), **options.get(name, {})))
    except ValueError as error:
        raise Unavailable(str(error)) from error


if __name__ == "__main__":
    serve(_start)
