"""What a round costs as the cohort grows: seconds, and memory that the round takes, in one process.

Clients hold four examples each, made when they are read, so that what is seen is the engine. A round is timed
for every size of cohort, and a line ``seconds = a + b * cohort`` is fitted.

    python benchmarks/costs/scaling.py --cohorts 100,1000,10000
"""

from __future__ import annotations

import resource

import numpy as np
import torch

from benchmarks.costs.many_clients import LazyClients
from benchmarks.script import parser, seconds, tell
from fedpart import AffineAugmentation, Federation, FederationSettings, Protocol, Task
from fedpart.engines import LocalEngine
from fedpart.nn.models import MODELS


def measure(model: str, cohort: int, rounds: int) -> dict[str, float]:
    """A federation with ``cohort`` clients a round; medians over ``rounds``, after one to warm up."""
    torch.manual_seed(0)
    task = Task(
        MODELS.resolve(model)(), transforms=[AffineAugmentation("lila", 0.1)], samples=1, channels_last=True
    )
    settings = FederationSettings(clients=2 * cohort, cohort=cohort, chunks=(0.7, 0.2, 0.1), seed=0)
    federation = Federation(Protocol(task, settings))
    engine = LocalEngine(federation, LazyClients("lazy", clients=2 * cohort, examples=4))
    engine.run_round()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reports = []
    times = [seconds(lambda: reports.append(engine.run_round())) for _ in range(rounds)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "cohort": cohort,
        "seconds_per_round": float(np.median(times)),
        "peak_mb": peak / 1024,
        "growth_mb": (peak - before) / 1024,
        "upload_mb": reports[-1].upload_bytes / 2**20,
        "download_mb": reports[-1].download_bytes / 2**20,
    }


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--model", default="digits_cnn")
    asked.add_argument("--cohorts", default="100,1000,10000")
    asked.add_argument("--rounds", type=int, default=3)
    given = asked.parse_args()
    torch.set_num_threads(1)
    rows = [measure(given.model, int(cohort), given.rounds) for cohort in given.cohorts.split(",")]
    for row in rows:
        tell(**{key: round(value, 4) for key, value in row.items()})
    if len(rows) > 1:
        cohorts, times = (np.array([row[key] for row in rows]) for key in ("cohort", "seconds_per_round"))
        slope, offset = np.polyfit(cohorts, times, 1, w=1 / times)
        print(f"seconds = {offset:.4f} + {1000 * slope:.3f} ms * cohort")


if __name__ == "__main__":
    main()
