"""The engines of this project in ``bench``, each in a process of its own.

``python -m benchmarks.rounds.ours NAME``
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

import fedpart
from benchmarks.rounds.timed import TimedEngine, Unavailable, serve
from benchmarks.rounds.workloads import Workload
from benchmarks.script import seconds
from fedpart import AdamSettings, AffineAugmentation, Batch, Dataset, Federation, SGDSettings
from fedpart.engines import LocalEngine
from fedpart.nn.models import MODELS
from fedpart.randomness.noise import Noise, NoiseKey


def make_protocol(workload: Workload, **task: Any) -> fedpart.Protocol:
    """What server and clients of a workload agree on; ``task`` goes to :class:`fedpart.Task`."""
    torch.manual_seed(workload.seed)
    given = {"num_classes": workload.classes, "input_shape": workload.shape, "dropout": workload.dropout}
    build = partial(MODELS.resolve(workload.model), **given)
    widths = [{} if width == 1 else {"width": width} for width in workload.widths]
    sizes = zip(workload.width_shares, widths, strict=True)
    learned = fedpart.Task(
        build(**widths[0]),
        transforms=[] if workload.affine is None else [AffineAugmentation("centred", workload.affine)],
        samples=workload.samples,
        sizes=build,
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
        architectures=tuple({"share": share, "model_options": options} for share, options in sizes)
        if len(widths) > 1
        else None,
        seed=workload.seed,
    )
    return fedpart.Protocol(learned, settings)


def make_shards(workload: Workload) -> list[Dataset]:
    return [Dataset(*workload.shard(client)) for client in range(workload.clients)]


class TimedFedpart(TimedEngine):
    """Rounds of one of this project's engines."""

    def __init__(self, name: str, engine: LocalEngine | FlowerRounds, shards: Sequence[Dataset]) -> None:
        self.name, self.federation, self.engine, self.shards = name, engine.federation, engine, shards

    def run(self, rounds: int) -> dict[str, Any]:
        return {"seconds": [seconds(self.engine.run_round) for _ in range(rounds)]}

    def passes(self) -> Callable[[], object] | None:
        """Forward and backward of every job of the last round, one by one, at the server's values."""
        if self.name == "local-fused":
            return None  # its batches are others: the cohort's, pooled
        federation, protocol = self.federation, self.federation.protocol
        points = {
            (partition, k): {
                name: tensor.detach().clone()
                for name, tensor in partition.materialise(federation.w, k).items()
            }
            for partition in protocol.partitions
            for k in range(1, partition.chunks + 1)
        }
        cohort = protocol.cohort(federation.round)
        plans = [(client, job) for client in cohort for job in protocol.plan(client, federation.round)]

        local = protocol.settings.local

        def alone() -> None:
            for client, job in plans:
                shard, trains = self.shards[client], job.partition is not None
                n = len(shard) if trains or local.psi_batch == "shard" else local.psi_batch
                point = points[protocol.partition_of(client), job.subnetwork]
                w = {name: w.detach().requires_grad_(trains) for name, w in point.items()}
                psi = federation.psi.detach().requires_grad_(job.psi)
                wanted = [tensor for tensor in (*w.values(), psi) if tensor.requires_grad]
                noise = Noise(NoiseKey(protocol.settings.seed, "bench"), dtype=protocol.task.dtype)
                parts = (part[:n].split(local.batch_size) for part in (shard.inputs, shard.targets))
                for x, y in zip(*parts, strict=True):
                    loss = protocol.method.loss(protocol.task_of(client), job, w, psi, Batch(x, y), noise)
                    torch.autograd.grad(loss, wanted)

        return alone


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


def _start(arguments: Mapping[str, Any]) -> TimedFedpart:
    torch.set_num_threads(1)
    name, workload = sys.argv[1], Workload.from_dict(arguments["workload"])
    precision = "bf16" if name in ("local-fast", "local-fused") else "fp32"
    federation = Federation(make_protocol(workload, precision=precision))
    shards = make_shards(workload)
    if name == "ray":
        from simulations.ray.grid import RayGrid

        grid = RayGrid(load, workload.clients, run_config(workload), workers=2)
        return TimedFedpart(name, FlowerRounds(federation, grid), shards)
    options: dict[str, Any] = {"local-workers2": {"workers": 2}, "local-fused": {"execution": "fused"}}
    try:
        return TimedFedpart(name, LocalEngine(federation, shards, **options.get(name, {})), shards)
    except ValueError as error:
        raise Unavailable(str(error)) from error


if __name__ == "__main__":
    serve(_start)
