"""What memory a run takes: a large cohort beside a small one, and a long run, which must not grow.

python -m benchmarks.costs.memory cohorts --engines local,workers,ray
python -m benchmarks.costs.memory soak --engines local,ray --rounds 1000
python -m benchmarks.costs.memory soak --engines deployed --rounds 60 --every 4 --warmup 20
"""

import gc
import json
import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
import typer

from benchmarks.memory import PeakMemory, occupied
from benchmarks.script import child, tell, tell_versions
from fedpart.engines import LocalEngine
from fedpart.flower.workarounds.control import SubmittedRun
from simulations.building.experiment import build
from simulations.config.load import ExperimentConfig
from simulations.deployment.up import Deployment, watch
from simulations.flower.config import deployed_run_config
from simulations.folders.run_directory import CONFIG, read_metrics
from simulations.results.terminal.progress import Progress
from simulations.running.run import run_experiment

MODULE = "benchmarks.costs.memory"
QUIET = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}  # the allocator gives back what is freed
CLIENTS, UPDATES, SAMPLE_SECONDS = 200, 400, 0.05
LEAK = 0.01  # of a process's memory, per hundred rounds
NODES = 2  # of a deployed federation
LASTING = {  # how many processes of which names live for a whole run: fewer have died, whatever came after
    "local": {MODULE: 1},
    "workers": {MODULE: 3},
    "ray": {MODULE: 1, "raylet": 1, "gcs_server": 1, "ray::Actor": 2},
    "deployed": {
        MODULE: 1,
        "workarounds.superlink": 1,
        "workarounds.supernode": NODES,
        "workarounds.executor": 1 + 2 * NODES,  # and the worker of each client
        "flwr-serverapp": 1,
    },
}
WIDE: dict[str, Any] = {  # two images a client, and a network of which updates are large
    "method": "fedavg",
    "clients": CLIENTS,
    "data": "digits",
    "training_points": 2 * CLIENTS,
    "split": {"recipe": "iid"},
    "samples": 1,
    "model": "mlp",
    "hyperparameters": {"affine": None, "dropout": None},
}
DIGITS: dict[str, Any] = {
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

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)


class CheckedDeployment(Deployment):
    """A federation for runs of an experiment."""

    def __init__(self, config: ExperimentConfig, folder: Path) -> None:
        super().__init__(config.clients, folder / "private", folder / "logs")
        self.config = config

    def run(
        self, out: Path, meanwhile: Callable[[threading.Event], None] = lambda over: None
    ) -> SubmittedRun:
        """A run until it has ended, however that is; ``meanwhile`` is told when it is over."""
        over = threading.Event()
        thread = threading.Thread(target=meanwhile, args=(over,))
        thread.start()
        try:
            id = self.control.start(deployed_run_config(self.config, out, (out / CONFIG).exists()))
            return watch(self, id, lambda text: None)
        finally:
            over.set()
            thread.join()


@app.command(hidden=True)
def cohort(engine: str, size: int, hidden: str) -> None:
    """In a process of its own: rounds without evaluation, of equally many clients whatever the cohort."""
    torch.set_num_threads(1)
    options = {"hidden": [int(units) for units in hidden.split(",")]}
    config = ExperimentConfig.from_dict({**WIDE, "cohort": size, "model_options": options})
    experiment = build(config)
    federation = experiment.start()
    tell(model_mb=len(federation.w) * federation.w.element_size() / 2**20)
    if engine == "ray":
        from simulations.ray.engine import starting

        with starting(config, Path()) as make, make(experiment, federation) as running:
            running.run(UPDATES // size)
    else:
        with LocalEngine(federation, experiment.shards, workers=1 if engine == "local" else 2) as running:
            running.run(UPDATES // size)


@app.command()
def cohorts(engines: str = "local,workers,ray", sizes: str = "2,200", hidden: str = "2000,2000") -> None:
    """How much more memory a large cohort takes than a small one, in models, on each engine.

    FedAvg of a wide network. Every run is a process tree of its own; what counts is its peak, see
    :class:`.PeakMemory`.
    """
    for engine in engines.split(","):
        peaks = []
        for size in sizes.split(","):
            with child(MODULE, "cohort", engine, size, hidden, **QUIET) as process:
                assert process.stdout is not None
                model: float = json.loads(process.stdout.readline())["model_mb"]
                with PeakMemory(process.pid, SAMPLE_SECONDS) as memory:
                    process.wait()
            peaks.append((memory.bytes or 0) / 2**20)
        row = {"peak_mb": [round(peak, 1) for peak in peaks], "model_mb": round(model, 1)}
        tell(engine=engine, cohorts=sizes, **row, more_models=round((peaks[-1] - peaks[0]) / model, 2))
    tell_versions(workers=2)


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


@app.command(hidden=True)
def long(engine: str, rounds: int, every: int) -> None:
    """In a process of its own: a run of the digits, whose processes are measured every so many rounds."""
    sampler, config = Sampler(every), {**DIGITS, "rounds": rounds}
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


def judged(engine: str, samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What became of every process that was there all the time, and of those of ``LASTING`` that were not."""
    rows: list[dict[str, Any]] = []
    lasting = sorted(set.intersection(*(set(row["mb"]) for row in samples)))
    for process in lasting:
        sizes = [row["mb"][process] for row in samples]
        slope = statistics.linear_regression([row["round"] for row in samples], sizes).slope
        growth = 100 * slope / sizes[0] if sizes[0] else 0.0
        summary = {"first_mb": sizes[0], "last_mb": sizes[-1], "growth_per_100_rounds": round(growth, 5)}
        rows.append({"process": process, **summary, "flat": growth < LEAK})
    for name, expected in LASTING[engine].items():
        lasted = sum(name in process for process in lasting)
        if lasted < expected:
            rows.append({"process": name, "expected": expected, "lasted": lasted, "flat": False})
    return rows


@app.command()
def soak(engines: str = "local,ray", rounds: int = 1000, every: int = 100, warmup: int = 200) -> None:
    """Whether memory stays flat over many rounds, in every process that lives for all of them.

    A run of the digits as `fedpart run` makes it, with evaluations, checkpoints and metrics, in a process
    tree of its own. Every so many rounds each process is measured: its proportional set size, without files.
    What counts is the slope of a line through the sizes after the warm-up: 1% or more of the first of them
    per hundred rounds is a leak, and the exit status 1, as it is if fewer processes than the engine has live
    for the whole run. Others that live for a part of it, such as deployed ClientApps, are not looked at.
    """
    if warmup + every > rounds:
        raise typer.BadParameter("there must be two samples after the warm-up")
    flat = True
    for engine in engines.split(","):
        samples = []
        with child(MODULE, "long", engine, rounds, every, **QUIET) as process:
            for line in process.stdout or ():
                if line.startswith('{"round"'):
                    samples.append(json.loads(line))
                    tell(engine=engine, **samples[-1])
        for summary in judged(engine, [row for row in samples if row["round"] >= warmup]):
            tell(engine=engine, **summary)
            flat &= summary["flat"]
    tell_versions()
    raise SystemExit(not flat)


if __name__ == "__main__":
    app()
