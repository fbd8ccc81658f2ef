"""Memory of a process and its descendants.

What processes share, such as Ray's object store, is divided among them (proportional set size). Files that
they map, PyTorch's libraries, are left out, for they come and go, and others map them too. Linux's /proc
tells; elsewhere nothing is known. A process that /proc does not show, one of another user, counts nothing.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import psutil


def occupied(pid: int) -> dict[int, int]:
    """Bytes of a process and its descendants, by process id."""
    found = {}
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(OSError):  # it has ended, or there is no /proc
                lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
                sizes = [
                    int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))
                ]
                found[process.pid] = 1024 * sum(sizes)
    return found


class PeakMemory:
    """Largest memory of a process and its descendants in the context; None where nothing is known."""

    def __init__(self, pid: int, interval: float) -> None:
        self._pid, self._interval, self._done = pid, interval, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.bytes: int | None = None

    @property
    def megabytes(self) -> float | None:
        return None if self.bytes is None else self.bytes / 1e6

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        over = False
        while not over:
            size = sum(occupied(self._pid).values())
            self.bytes = max(self.bytes or 0, size) or None
            over = self._done.wait(self._interval)
