"""What a round costs as the cohort grows: seconds, and memory that the round takes, in one process.

Clients hold four examples each, made when they are read, so that what is seen is the engine. A round is timed
for every size of cohort, and a line ``seconds = a + b * cohort`` is fitted.

    python benchmarks/costs/scaling.py --cohorts 100,1000,10000
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np
import torch

from fedpart import AffineAugmentation, Dataset, Federation, FederationSettings, Protocol, Task
from fedpart.engines import LocalEngine
from fedpart.models import MODELS


class Clients:
    """Lazy shards: client i's data are a function of i."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int) -> Dataset:
        g = torch.Generator().manual_seed(client)
        return Dataset(torch.rand(4, 1, 28, 28, generator=g), torch.randint(0, 10, (4,), generator=g))


def measure(model: str, cohort: int, rounds: int) -> dict[str, float]:
    """A federation with ``cohort`` clients a round; medians over ``rounds``, after one to warm up."""
    torch.manual_seed(0)
    task = Task(
        MODELS.resolve(model)(), transforms=[AffineAugmentation("lila", 0.1)], samples=1, channels_last=True
    )
    settings = FederationSettings(clients=2 * cohort, cohort=cohort, chunks=(0.7, 0.2, 0.1), seed=0)
    federation = Federation(Protocol(task, settings))
    engine = LocalEngine(federation, Clients(2 * cohort))
    seconds, before = [], 0
    for _ in range(1 + rounds):
        start = time.perf_counter()
        report = engine.run_round()
        seconds.append(time.perf_counter() - start)
        before = before or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "cohort": cohort,
        "seconds_per_round": float(np.median(seconds[1:])),
        "peak_mb": peak / 1024,
        "growth_mb": (peak - before) / 1024,
        "upload_mb": report.upload_bytes / 2**20,
        "download_mb": report.download_bytes / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="digits_cnn")
    parser.add_argument("--cohorts", default="100,1000,10000")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(given.model, int(cohort), given.rounds) for cohort in given.cohorts.split(",")]
    for row in rows:
        print(json.dumps({key: round(value, 4) for key, value in row.items()}))
    if len(rows) > 1:
        cohorts, seconds = (np.array([row[key] for row in rows]) for key in ("cohort", "seconds_per_round"))
        slope, offset = np.polyfit(cohorts, seconds, 1, w=1 / seconds)
        print(f"seconds = {offset:.4f} + {1000 * slope:.3f} ms * cohort")


if __name__ == "__main__":
    main()
