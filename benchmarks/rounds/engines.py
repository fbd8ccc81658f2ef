"""The engines that ``bench`` compares, which workloads each can run, and the processes that they run in."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.rounds.workloads import WORKLOADS, Workload
from simulations.config.load import ConfigError
from simulations.errors import RunError


@dataclass(frozen=True)
class Program:
    """How an engine is started."""

    command: str  # a module of this folder, for python -m, and its arguments
    processes: int = 1  # that compute at the same time
    stepped: bool = True  # whether it can wait between rounds

    @property
    def module(self) -> list[str]:
        return f"benchmarks.rounds.{self.command}".split()

    @property
    def ours(self) -> bool:
        return self.command.startswith("ours")

    @property
    def deployed(self) -> bool:
        return self.command.startswith("deployed")

    @property
    def pfl(self) -> bool:
        return self.command.startswith("pfl")


USUAL: dict[str, Program] = {
    "bare": Program("bare"),
    "local": Program("ours local"),
    "local-workers2": Program("ours local-workers2", 2),
    "local-fast": Program("ours local-fast"),
    "local-fused": Program("ours local-fused"),
    "ray": Program("ours ray", 2),
    "flower": Program("flower_fedavg", 2, stepped=False),
    "pfl": Program("pfl_fedavg"),
}
ENGINES: dict[str, Program] = {
    **USUAL,
    "bare-contiguous": Program("bare --contiguous"),  # PyTorch's default memory layout
    "pfl-equal": Program("pfl_fedavg --kernels ours"),  # channels-last, fused Adam
    "deployed": Program("deployed ours", 2, stepped=False),
    "flower-deployed": Program("deployed flower", 2, stepped=False),
}


def left_out(program: Program, workload: Workload, pfl_python: Path | None) -> str | None:
    """Why the workload cannot run on an engine, in a sentence; None if it can."""
    if program.deployed != workload.deployed:
        if program.deployed:
            return "a federation of real processes runs the quick start, D1."
        return "it is a federation of real processes."
    if workload.widths != (1.0,) and not program.ours:
        return "it has one network, of full width."
    plain = workload.server == "adam" and workload.affine is None and not workload.partitioned
    if program.command == "flower_fedavg" and not plain:
        return "the stock Flower app is plain FedAvg with Adam, without augmentation."
    if program.pfl and workload.partitioned:
        return "pfl has no partitioned training."
    if program.pfl and pfl_python is None:
        return (
            "pfl needs an environment of its own; make it as docs/guides/benchmarks.md says, and name its "
            "Python with --pfl-python."
        )
    return None


def check_any(engines: Sequence[str], workloads: Sequence[Workload], pfl_python: Path | None) -> None:
    """Refuse engines and workloads of which no pair can run."""
    if any(
        left_out(ENGINES[name], workload, pfl_python) is None for name in engines for workload in workloads
    ):
        return
    particular = []
    for name, program in ENGINES.items():
        python = Path("python") if program.pfl else None
        known = [workload for workload in WORKLOADS.values() if program.deployed or not workload.deployed]
        runs = [workload.name for workload in known if not left_out(program, workload, python)]
        if len(runs) < len(known):
            particular.append(f"{name} runs {' and '.join(runs)}{' with --pfl-python' if python else ''}")
    asked = [" or ".join(engines), " or ".join(workload.name for workload in workloads)]
    raise ConfigError(
        f"There is nothing to time of {' on '.join(asked)}: {', '.join(particular)}, and every other engine "
        "every workload but D1; see docs/guides/benchmarks.md."
    )


ROOT = Path(__file__).resolve().parents[2]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PATIENCE = 30.0  # seconds that an engine has for its end


class EngineProcess:
    """One engine, which may have children; it answers as :func:`.serve` does."""

    def __init__(self, name: str, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self.name, self.born, self.pid = name, time.perf_counter(), process.pid
        self._process, self._errors = process, errors

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            last = [text for text in self._errors.read().splitlines() if text.strip()][-1:] or ["no message"]
            raise RunError(f"The engine {self.name} ended with status {status}: {last[0]}")
        return json.loads(line)  # type: ignore[no-any-return]


@contextmanager
def engine_process(name: str, module: Sequence[str], python: str | None = None) -> Iterator[EngineProcess]:
    """Start an engine, ``python -m`` a module, with one thread; it ends by itself, or is killed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [python or sys.executable, "-m", *module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            yield EngineProcess(name, process, errors)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=PATIENCE)
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(PATIENCE)
