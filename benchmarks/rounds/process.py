"""The processes that ``bench`` runs engines in, seen from outside."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from simulations.errors import RunError

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
    """Start an engine, with one thread; at the end it ends by itself, or is killed after an error.

    It is ``python -m`` this module, with its arguments, by this interpreter if no other is given.
    """
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
