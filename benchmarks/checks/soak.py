"""Whether memory stays flat over many rounds, in every process that lives for all of them.

A run of the digits as `fedpart run` makes it, with evaluations, checkpoints and metrics, in a process tree of
its own. Every so many rounds each process is measured: its proportional set size, without files. What counts
is the slope of a line through the sizes after the warm-up: 1% or more of the first of them per hundred rounds
is a leak, and the exit status 1, as it is if fewer processes than the engine has live for the whole run.
Others that live for a part of it, such as deployed ClientApps, are not looked at.

    python benchmarks/checks/soak.py --engines local ray --rounds 1000
    python benchmarks/checks/soak.py --engines deployed --rounds 60 --every 4 --warmup 20
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.checks.aggregation_memory import QUIET
from benchmarks.checks.crash_deployed import CheckedDeployment
from benchmarks.memory import occupied
from benchmarks.script import child, parser, start, tell, tell_versions
from simulations.config.load import ExperimentConfig
from simulations.folders.run_directory import read_metrics
from simulations.results.terminal.progress import Progress
from simulations.running.run import run_experiment

LEAK = 0.01  # of a process's memory, per hundred rounds
NODES = 2  # of a deployed federation
LASTING = {  # how many processes of which names live for a whole run: fewer have died, whatever came after
    "local": {"soak.py": 1},
    "workers": {"soak.py": 3},
    "ray": {"soak.py": 1, "raylet": 1, "gcs_server": 1, "ray::Actor": 2},
    "deployed": {
        "soak.py": 1,
        "workarounds.superlink": 1,
        "workarounds.supernode": NODES,
        "workarounds.executor": 1 + NODES,
        "workarounds.workers": 1 + 2 * NODES,  # and the worker of each client
        "flwr-serverapp": 1,
    },
}
EXPERIMENT: dict[str, Any] = {
    "data": "digits",
    "clients": 20,
    "cohort": 10,
    "samples": 2,
    "training_points": 400,
    "validation_points": 100,
    "test_points": 100,
    "evaluate_every": 10,
    "checkpoint_every": 10,
}


class Sampler(Progress):
    """Shows nothing, and prints the sizes of this process and its descendants as a row of JSON."""

    def __init__(self, every: int) -> None:
        super().__init__(quiet=True)
        self.every, self._names = every, dict[int, str]()  # a process may change its title

    def completed(self, count: int) -> None:
        if count % self.every == 0:
            gc.collect()
            sizes = occupied(os.getpid())
            self._names = {pid: self._names.get(pid) or _name(pid) for pid in sizes}
            sizes = {self._names[pid]: round(size / 2**20, 2) for pid, size in sorted(sizes.items())}
            tell(round=count, mb=sizes)

    def follow(self, out: Path, over: threading.Event) -> None:
        """Look at the run that other processes make in ``out``, until it is over."""
        seen = 0
        while not over.wait(0.2):
            if (count := len(read_metrics(out))) > seen:
                seen = count
                self.completed(count)


def _name(pid: int) -> str:
    words: list[str] = []
    with suppress(psutil.Error):  # it has ended
        words = " ".join(psutil.Process(pid).cmdline()).split()
    names = [Path(word).name for word in words if not word.startswith("-")]
    return f"{pid} {' '.join(names[:2])[:60]}".strip()


def run(engine: str, rounds: str, every: str) -> None:
    """In a process of its own."""
    sampler, config = Sampler(int(every)), {**EXPERIMENT, "rounds": int(rounds)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if engine == "deployed":  # each node has half of the data
            config |= {"clients": NODES, "cohort": NODES, "chunks": [0.5, 0.5]}
            with CheckedDeployment(ExperimentConfig.from_dict(config), Path(folder)) as federation:
                ended = federation.run(out, partial(sampler.follow, out))
            if not ended.completed:
                raise SystemExit(f"The run has {ended.outcome}")
        else:
            kind = "ray" if engine == "ray" else "local"
            config |= {"engine": kind, "workers": None if engine == "local" else 2}
            run_experiment(ExperimentConfig.from_dict(config), out, progress=sampler)


def soak(engine: str, rounds: int, every: int, warmup: int) -> bool:
    """Print the rows of one engine; whether no process has grown, and none is missing."""
    samples = []
    with child(__file__, engine, rounds, every, **QUIET) as process:
        for line in process.stdout or ():
            if line.startswith('{"round"'):
                samples.append(json.loads(line))
                tell(engine=engine, **samples[-1])
    found = judged(engine, [row for row in samples if row["round"] >= warmup])
    for summary in found:
        tell(engine=engine, **summary)
    return all(summary["flat"] for summary in found)


def judged(engine: str, samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What became of every process that was there all the time, and of those of ``LASTING`` that were not."""
    found: list[dict[str, Any]] = []
    lasting = sorted(set.intersection(*(set(row["mb"]) for row in samples)))
    for process in lasting:
        sizes = [row["mb"][process] for row in samples]
        slope = statistics.linear_regression([row["round"] for row in samples], sizes).slope
        growth = 100 * slope / sizes[0] if sizes[0] else 0.0
        summary = {"first_mb": sizes[0], "last_mb": sizes[-1], "growth_per_100_rounds": round(growth, 5)}
        found.append({"process": process, **summary, "flat": growth < LEAK})
    for name, count in LASTING[engine].items():
        there = sum(name in process for process in lasting)
        if there < count:
            found.append({"process": name, "expected": count, "lasted": there, "flat": False})
    return found


def main() -> int:
    asked = parser(__doc__)
    asked.add_argument("--engines", nargs="+", choices=LASTING, default=["local", "ray"])
    asked.add_argument("--rounds", type=int, default=1000)
    asked.add_argument("--every", type=int, default=100, help="rounds between samples")
    asked.add_argument("--warmup", type=int, default=200, help="rounds that are not looked at")
    given = asked.parse_args()
    if given.warmup + given.every > given.rounds:
        asked.error("there must be two samples after the warm-up")
    flat = [soak(engine, given.rounds, given.every, given.warmup) for engine in given.engines]
    tell_versions()
    return 0 if all(flat) else 1


if __name__ == "__main__":
    start(main, run)
