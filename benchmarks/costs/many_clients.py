"""What a round costs as more clients are registered, at one size of the cohort.

W1's clients (MNIST CNN, 12 images, one full-batch step of FedAvg), synthetic and lazy, in one process.
Rounds of all numbers of clients are interleaved; medians are compared. Memory is the resident set after three
rounds, for each of them in a process of its own, less that of the fewest clients.

    python benchmarks/costs/many_clients.py --rounds 30
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import torch

from fedpart import Dataset, Federation, FederationSettings, Protocol, Task
from fedpart.engines import LocalEngine
from fedpart.models import mnist_cnn


class Shards:
    """Random images, made when they are read."""

    def __init__(self, clients: int, images: int) -> None:
        self.clients, self.images = clients, images

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, client: int) -> Dataset:
        generator = torch.Generator().manual_seed(client)
        inputs = torch.rand(self.images, 1, 28, 28, generator=generator)
        return Dataset(inputs, torch.randint(10, (self.images,), generator=generator))


def engine_of(clients: int, cohort: int, images: int) -> LocalEngine:
    torch.manual_seed(0)
    settings = FederationSettings(clients=clients, cohort=cohort, method="fedavg")
    protocol = Protocol(Task(mnist_cnn(), samples=1), settings)
    return LocalEngine(Federation(protocol), Shards(clients, images))


def occupied_after(engine: LocalEngine) -> None:
    """Resident memory after three rounds, printed in kilobytes; in a process of its own."""
    engine.run(3)
    lines = Path("/proc/self/status").read_text().splitlines()
    print(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--images", type=int, default=12, help="per client")
    parser.add_argument("--rounds", type=int, default=32, help="of each number of clients")
    parser.add_argument("--occupied", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.occupied:
        occupied_after(engine_of(*given.clients, given.cohort, given.images))
        return

    kilobytes, seconds = {}, {}
    for clients in given.clients:
        options = [f"--clients={clients}", f"--cohort={given.cohort}", f"--images={given.images}"]
        command = [sys.executable, __file__, *options, "--occupied"]
        kilobytes[clients] = int(subprocess.run(command, check=True, capture_output=True).stdout)
        seconds[clients] = list[float]()
    engines = {clients: engine_of(clients, given.cohort, given.images) for clients in given.clients}
    order = deque(given.clients)
    for turn in range(given.rounds + 1):
        for clients in order:
            start = time.perf_counter()
            engines[clients].run_round()
            if turn:  # the first is a warm-up
                seconds[clients].append(time.perf_counter() - start)
        order.rotate()  # nobody always comes first
    fewest = min(engines)
    for clients in engines:
        median = statistics.median(seconds[clients])
        row = {
            "clients": clients,
            "cohort": given.cohort,
            "seconds_per_round": round(median, 5),
            "ratio": round(median / statistics.median(seconds[fewest]), 4),
            "grown_mb": round((kilobytes[clients] - kilobytes[fewest]) / 1024, 2),
        }
        print(json.dumps(row))
    print(json.dumps({"threads": 1, "torch": torch.__version__, "python": platform.python_version()}))


if __name__ == "__main__":
    main()
