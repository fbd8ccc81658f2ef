"""How much more memory a large cohort takes than a small one, in models, on each engine.

A wide network, FedAvg, two images per client. Every run is a process tree of its own; what counts is the
largest sum of proportional set sizes that is seen while it runs: shared pages, such as those of Ray's object
store, are divided among the processes that share them; those of files (PyTorch's libraries) are left out, for
they come and go, and the allocator is told to give back what is freed. All runs train equally many clients.

    python benchmarks/checks/aggregation_memory.py --engines local workers ray
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from fedpart.engines import LocalEngine
from simulations.building.experiment import build
from simulations.config.load import ExperimentConfig

CLIENTS, UPDATES, SAMPLE_SECONDS = 200, 400, 0.05
QUIET = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}


def run(engine: str, cohort: int, hidden: list[int]) -> None:
    """In a process of its own: rounds without evaluation."""
    torch.set_num_threads(1)
    config = ExperimentConfig.from_dict(
        {
            "method": "fedavg",
            "clients": CLIENTS,
            "cohort": cohort,
            "data": "digits",
            "training_points": 2 * CLIENTS,
            "split": {"recipe": "iid"},
            "samples": 1,
            "model": "mlp",
            "model_options": {"hidden": hidden},
            "hyperparameters": {"affine": None, "dropout": None},
        }
    )
    experiment = build(config)
    federation = experiment.start()
    print(json.dumps({"model_mb": len(federation.w) * federation.w.element_size() / 2**20}), flush=True)
    made: AbstractContextManager[Any]
    if engine == "ray":
        from simulations.ray.engine import RayEngine

        made = RayEngine(experiment, federation, workers=2)
    else:
        made = LocalEngine(federation, experiment.shards, workers=2 if engine == "workers" else 1)
    with made as running:
        running.run(UPDATES // cohort)


def processes(main: int) -> dict[int, float]:
    """Proportional set sizes, without files, of a process and its descendants: megabytes by process id."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    family, found = {main}, dict[int, float]()
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    for pid in family:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        sizes = [int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
        found[pid] = sum(sizes) / 1024
    return found


def measure(engine: str, cohort: int, hidden: list[int]) -> tuple[float, float]:
    """Size of the model and peak of the memory, in megabytes."""
    command = [sys.executable, __file__, "--child", engine, str(cohort), *map(str, hidden)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **QUIET}) as child:
        assert child.stdout is not None
        model: float = json.loads(child.stdout.readline())["model_mb"]
        peak = 0.0
        while child.poll() is None:
            peak = max(peak, sum(processes(child.pid).values()))
            time.sleep(SAMPLE_SECONDS)
    if child.returncode:
        raise SystemExit(f"The run of {engine} with a cohort of {cohort} has failed.")
    return model, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engines", nargs="+", default=["local", "workers", "ray"])
    parser.add_argument("--cohorts", type=int, nargs=2, default=[2, 200])
    parser.add_argument("--hidden", type=int, nargs="+", default=[2000, 2000], help="units per layer")
    given = parser.parse_args()
    for engine in given.engines:
        found = [measure(engine, cohort, given.hidden) for cohort in given.cohorts]
        model, small, large = found[0][0], found[0][1], found[1][1]
        row = {
            "engine": engine,
            "cohorts": given.cohorts,
            "peak_mb": [round(small, 1), round(large, 1)],
            "model_mb": round(model, 1),
            "more_models": round((large - small) / model, 2),
        }
        print(json.dumps(row), flush=True)
    print(json.dumps({"workers": 2, "torch": torch.__version__, "python": platform.python_version()}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run(sys.argv[2], int(sys.argv[3]), [int(units) for units in sys.argv[4:]])
    else:
        main()
