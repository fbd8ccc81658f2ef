"""How much more memory a large cohort takes than a small one, in models, on each engine.

A wide network, FedAvg, two images per client. Every run is a process tree of its own; what counts is its
peak, see :class:`.PeakMemory`. The allocator is told to give back what is freed. All runs train equally many
clients.

    python benchmarks/checks/aggregation_memory.py --engines local workers ray
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from benchmarks.memory import PeakMemory
from benchmarks.script import child, parser, start, tell, tell_versions
from fedpart.engines import LocalEngine
from simulations.building.experiment import build
from simulations.config.load import ExperimentConfig

CLIENTS, UPDATES, SAMPLE_SECONDS = 200, 400, 0.05
QUIET = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}


def run(engine: str, cohort: str, *hidden: str) -> None:
    """In a process of its own: rounds without evaluation."""
    torch.set_num_threads(1)
    config = ExperimentConfig.from_dict(
        {
            "method": "fedavg",
            "clients": CLIENTS,
            "cohort": int(cohort),
            "data": "digits",
            "training_points": 2 * CLIENTS,
            "split": {"recipe": "iid"},
            "samples": 1,
            "model": "mlp",
            "model_options": {"hidden": [int(units) for units in hidden]},
            "hyperparameters": {"affine": None, "dropout": None},
        }
    )
    experiment = build(config)
    federation = experiment.start()
    tell(model_mb=len(federation.w) * federation.w.element_size() / 2**20)
    rounds = UPDATES // int(cohort)
    if engine == "ray":
        from simulations.ray.engine import starting

        with starting(config, Path()) as make, make(experiment, federation) as running:
            running.run(rounds)
    else:
        with LocalEngine(federation, experiment.shards, workers=1 if engine == "local" else 2) as running:
            running.run(rounds)


def measure(engine: str, cohort: int, hidden: list[int]) -> tuple[float, float]:
    """Size of the model and peak of the memory, in megabytes."""
    with child(__file__, engine, cohort, *hidden, **QUIET) as process:
        assert process.stdout is not None
        model: float = json.loads(process.stdout.readline())["model_mb"]
        with PeakMemory(process.pid, SAMPLE_SECONDS) as memory:
            process.wait()
    return model, (memory.bytes or 0) / 2**20


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--engines", nargs="+", default=["local", "workers", "ray"])
    asked.add_argument("--cohorts", type=int, nargs=2, default=[2, 200])
    asked.add_argument("--hidden", type=int, nargs="+", default=[2000, 2000], help="units per layer")
    given = asked.parse_args()
    for engine in given.engines:
        (model, small), (_, large) = [measure(engine, cohort, given.hidden) for cohort in given.cohorts]
        tell(
            engine=engine,
            cohorts=given.cohorts,
            peak_mb=[round(small, 1), round(large, 1)],
            model_mb=round(model, 1),
            more_models=round((large - small) / model, 2),
        )
    tell_versions(workers=2)


if __name__ == "__main__":
    start(main, run)
