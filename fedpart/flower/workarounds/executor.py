"""An executor that stops in order: ``python -m fedpart.flower.workarounds.executor``.

The fault: ``flower-superexec`` ends at once when it is asked to, and its ServerApp with it. This one hands
SIGTERM on to the ServerApp, which finishes its round and writes a checkpoint, and ends when the ServerApp
has. ClientApps have a warm process (``workers.py``). When the process that has started it is gone (SIGHUP),
it takes all of its session with it, and Flower's executor ends when this one is killed: nothing outlives it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedpart.extras import need

psutil = need("psutil", "An executor", "deployment")
EXECUTOR = (sys.executable, "-m", "fedpart.flower.workarounds.workers")
POLL_SECONDS = 0.2
_TIED = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, int(sys.argv[1]))\n"  # PR_SET_PDEATHSIG
    "if os.getppid() == int(sys.argv[2]): os.execv(sys.argv[3], sys.argv[3:])"  # else it has died before
)


def tied(number: int, command: Sequence[str]) -> list[str]:
    """The command, whose process gets a signal when the one that starts it dies; on Linux alone."""
    if sys.platform != "linux":
        return [*command]
    return [sys.executable, "-c", _TIED, str(int(number)), str(os.getpid()), *command]


def tool(name: str) -> str:
    """Path of a command that is installed beside this Python."""
    return str(Path(sys.executable).parent / name)


def main() -> None:
    """Run an executor with the arguments of this command, and end with its status."""
    stopping: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopping.append(number))
    signal.signal(signal.SIGHUP, lambda number, frame: os.killpg(0, signal.SIGKILL))
    child = subprocess.Popen(tied(signal.SIGKILL, [*EXECUTOR, *sys.argv[1:]]))
    told: set[int] = set()
    while child.poll() is None:
        time.sleep(POLL_SECONDS)
        if stopping:
            apps = children(child.pid)
            for app in apps - told:
                os.kill(app, signal.SIGTERM)
            told |= apps
            if not apps and child.pid not in told:
                child.terminate()  # once: a second signal would cut its orderly end short
                told.add(child.pid)
    raise SystemExit(child.returncode if child.returncode >= 0 else 128 - child.returncode)


def children(parent: int) -> set[int]:
    """Processes that ``parent`` has started and that have not ended."""
    found = set()
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(parent).children():
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if child.status() != psutil.STATUS_ZOMBIE:
                    found.add(child.pid)
    return found


if __name__ == "__main__":
    main()
