"""The engines that ``bench`` compares, which workloads each can run, and the processes that they run in."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from benchmarks.rounds.workloads import Workload
from simulations.errors import RunError


@dataclass(frozen=True)
class Program:
    """How an engine is started."""

    command: str  # a module of this folder, for python -m, and its arguments
    stepped: bool = True  # whether it can wait between rounds

    @property
    def module(self) -> list[str]:
        return f"benchmarks.rounds.{self.command}".split()

    @property
    def pfl(self) -> bool:
        return self.command.startswith("pfl")


USUAL: dict[str, Program] = {
    "bare": Program("bare"),
    "local": Program("ours local"),
    "local-workers2": Program("ours local-workers2"),
    "local-fast": Program("ours local-fast"),
    "local-fused": Program("ours local-fused"),
    "ray": Program("ours ray"),
    "flower": Program("flower_fedavg", stepped=False),
    "pfl": Program("pfl_fedavg"),
}
ENGINES: dict[str, Program] = {
    **USUAL,
}


def left_out(program: Program, workload: Workload, pfl_python: Path | None) -> str | None:
    """Why the workload cannot run on an engine, in a sentence; None if it can."""
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


def occupied(pid: int) -> int:
    """Bytes of a process and its descendants; 0 where nothing is known.

    What they share, such as Ray's object store, is divided among them (proportional set size). Files that
    they map, PyTorch's libraries, are left out, for others map them too. Linux's /proc tells.
    """
    kilobytes = 0
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(OSError):  # it has ended, is another user's, or there is no /proc
                lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
                parts = ("Pss_Anon:", "Pss_Shmem:")
                kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith(parts))
    return 1024 * kilobytes


@contextmanager
def peak_memory(pid: int, interval: float) -> Iterator[Callable[[], float | None]]:
    """What answers with the largest :func:`occupied` within the context, in 10^6 bytes; None: not known."""
    over, largest = threading.Event(), 0

    def watch() -> None:
        nonlocal largest
        while True:
            last, largest = over.wait(interval), max(largest, occupied(pid))
            if last:
                return

    largest = occupied(pid)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: largest / 1e6 if largest else None
    finally:
        over.set()
        thread.join()
