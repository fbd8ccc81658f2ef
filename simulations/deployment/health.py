"""Whether a part of a federation works: ``python -m simulations.deployment.health [HOST:PORT CA.crt]``.

With an address: the Flower server there answers. Without: the executor in this container looks for tasks.
"""

from __future__ import annotations

import ssl
import sys
import time
import urllib.request
from pathlib import Path

EXECUTOR, SECONDS = "flower-superexec", 5.0  # it looks for tasks several times in so long


def main() -> None:
    """Exit with status 0 if it does; a server's certificate has to be signed by the authority."""
    if sys.argv[1:]:
        address, authority = sys.argv[1:]
        context = ssl.create_default_context(cafile=authority)
        urllib.request.urlopen(f"https://{address}/health", timeout=5, context=context).close()
    elif not any(moves(process) for process in running(EXECUTOR)):
        raise SystemExit(f"No {EXECUTOR} looks for tasks.")


def running(program: str) -> list[int]:
    """Processes (on Linux) that run an installed command."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_text(errors="replace").split("\0")
        except OSError:  # it has ended meanwhile
            continue
        if program in (Path(word).name for word in words[:2]):  # behind its interpreter
            found.append(int(file.parent.name))
    return found


def moves(process: int, seconds: float = SECONDS) -> bool:
    """Whether the main thread of a process wakes and sleeps again within so many seconds."""
    before, deadline = _waits(process), time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.1)
        if _waits(process) not in ("", before):
            return True
    return False


def _waits(process: int) -> str:
    """How often its main thread has gone to sleep; empty if it is not there."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return ""
    return next((line for line in status.splitlines() if line.startswith("voluntary_ctxt")), "")


if __name__ == "__main__":
    main()
