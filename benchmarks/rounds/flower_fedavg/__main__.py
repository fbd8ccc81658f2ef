"""``fedpart bench`` runs this in a process of its own: ``python -m benchmarks.rounds.flower_fedavg``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

import fedpart.flower.environment  # noqa: F401

# isort: split
from flwr.simulation import run_simulation
from torch.nn import functional as F

from benchmarks.rounds.flower_fedavg.app import Net, client_app, load_data, make_server_app
from benchmarks.rounds.timed import TimedEngine, serve
from benchmarks.rounds.workloads import Workload

ACTORS = 2


class TimedFlower(TimedEngine):
    """Flower cannot be stopped between rounds: a request runs a simulation of its own, from start to end."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def run(self, rounds: int) -> dict[str, Any]:
        ends: list[float] = []
        start = time.perf_counter()
        run_simulation(
            make_server_app(rounds, ends),
            client_app,
            num_supernodes=self.workload.clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": ACTORS},
            },
        )
        return {"seconds": [after - before for before, after in zip([start, *ends], ends, strict=False)]}

    def passes(self) -> Callable[[], object]:
        net = Net()
        batches = [batch for client in range(self.workload.cohort) for batch in load_data(client)]

        def alone() -> None:
            for images, labels in batches:
                torch.autograd.grad(F.cross_entropy(net(images), labels), list(net.parameters()))

        return alone


def _start(arguments: Mapping[str, Any]) -> TimedFlower:
    torch.set_num_threads(1)
    os.environ["FEDPART_BENCH_WORKLOAD"] = json.dumps(arguments["workload"])
    return TimedFlower(Workload.from_dict(arguments["workload"]))


if __name__ == "__main__":
    serve(_start, "flwr", "ray")
