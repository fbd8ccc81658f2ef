"""Whether a part of a federation works: ``python -m simulations.deployment.health [HOST:PORT CA.crt]``.

With an address: the Flower server there answers. Without: the executor in this container looks for tasks.
"""

import ssl
import sys
import time
import urllib.request
from pathlib import Path

from fedpart.extras import need

psutil = need("psutil", "The check of a federation's parts", "deployment")
EXECUTOR, SECONDS = "fedpart.flower.workarounds.executor", 5.0  # it looks for tasks several times in so long


def main() -> None:
    """Exit with status 0 if it does; a server's certificate has to be signed by the authority."""
    if sys.argv[1:]:
        address, authority = sys.argv[1:]
        context = ssl.create_default_context(cafile=authority)
        urllib.request.urlopen(f"https://{address}/health", timeout=5, context=context).close()
    elif not any(moves(process) for process in running(EXECUTOR)):
        raise SystemExit(f"No {EXECUTOR} looks for tasks.")


def running(program: str) -> list[int]:
    """Processes that run a command or a module, but for those that they have forked."""
    parents = {
        process.pid: process.info["ppid"]
        for process in psutil.process_iter(["cmdline", "ppid"])
        if program in (Path(word).name for word in (process.info["cmdline"] or [])[:3])
    }
    return [process for process, parent in parents.items() if parent not in parents]


def moves(process: int, seconds: float = SECONDS) -> bool:
    """Whether a process wakes and sleeps again within so many seconds."""
    before, deadline = _waits(process), time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.1)
        if _waits(process) not in (None, before):
            return True
    return False


def _waits(process: int) -> int | None:
    """How often its main thread has gone to sleep; None: it is not there, or has ended."""
    try:
        return int(psutil.Process(process).num_ctx_switches().voluntary)
    except psutil.NoSuchProcess:
        return None


if __name__ == "__main__":
    main()
