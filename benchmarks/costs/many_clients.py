"""What a round costs as more clients are registered, at one size of the cohort.

W1's clients (MNIST CNN, 12 images, one full-batch step of FedAvg), synthetic and lazy, in one process.
Rounds of all numbers of clients are interleaved; medians are compared. Memory is the resident set after three
rounds, for each of them in a process of its own, less that of the fewest clients.

    python benchmarks/costs/many_clients.py --rounds 30
"""

from __future__ import annotations

import statistics

import psutil
import torch

from benchmarks.rounds.workloads import Workload
from benchmarks.script import child, in_turn, parser, start, tell, tell_versions
from fedpart import Dataset, Federation, FederationSettings, Protocol, Task
from fedpart.engines import LocalEngine
from fedpart.nn.models import mnist_cnn


class LazyClients(Workload):
    """Clients with random images, made when they are read."""

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, client: int) -> Dataset:
        return Dataset(*self.shard(client))


def engine_of(clients: int, cohort: int, images: int) -> LocalEngine:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = FederationSettings(clients=clients, cohort=cohort, method="fedavg")
    protocol = Protocol(Task(mnist_cnn(), samples=1), settings)
    return LocalEngine(Federation(protocol), LazyClients("lazy", clients=clients, examples=images))


def run(*sizes: str) -> None:
    """In a process of its own: resident memory after three rounds, printed in bytes."""
    engine_of(*map(int, sizes)).run(3)
    print(psutil.Process().memory_info().rss)


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--clients", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    asked.add_argument("--cohort", type=int, default=10)
    asked.add_argument("--images", type=int, default=12, help="per client")
    asked.add_argument("--rounds", type=int, default=32, help="of each number of clients")
    given = asked.parse_args()
    sizes, engines = {}, {}
    for clients in given.clients:
        engines[clients] = engine_of(clients, given.cohort, given.images)
        with child(__file__, clients, given.cohort, given.images) as process:
            sizes[clients] = int(process.communicate()[0])
    times = in_turn({clients: engine.run_round for clients, engine in engines.items()}, given.rounds)
    medians = {clients: statistics.median(found) for clients, found in times.items()}
    fewest = min(engines)
    for clients in engines:
        tell(
            clients=clients,
            cohort=given.cohort,
            seconds_per_round=round(medians[clients], 5),
            ratio=round(medians[clients] / medians[fewest], 4),
            grown_mb=round((sizes[clients] - sizes[fewest]) / 2**20, 2),
        )
    tell_versions(threads=1)


if __name__ == "__main__":
    start(main, run)
