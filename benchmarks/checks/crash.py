"""What kill -9, a full disk and vanishing nodes do to a run: ``python benchmarks/checks/crash.py all``.

Kills a local ``fedpart run``, or a process of a deployed one, at random moments, lets the run go on, and
compares its final weights with those of a run that nothing happened to, to the bit. A client that loses its
SuperNode has not answered, which ends that run here, and is resumed.
``nodes`` kills half of the SuperNodes in a round; ``disk`` lets a small tmpfs fill up during a checkpoint
(this takes root). Exit status 1 if a run does not end as it should.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.checks.crash_case import Case, fedpart, go_on
from benchmarks.checks.crash_deployed import (
    kill_deployed,
    kill_executor,
    kill_serverapp,
    kill_superlink,
    kill_supernode,
    kill_worker,
    nodes,
)
from benchmarks.script import parser
from simulations.folders.run_directory import CHECKPOINT, read_metrics

ROOT = Path(__file__).parents[2]


def local(folder: Path, kills: int, moments: random.Random) -> int:
    """Kill ``fedpart run``."""
    case, start = Case(folder, 60), time.monotonic()
    go_on(case, folder / "timed")
    seconds = time.monotonic() - start
    for kill in range(kills):
        out, moment = folder / f"run-{kill}", moments.uniform(0.2, 0.9) * seconds
        process = fedpart("run", case.file, "--out", out)
        time.sleep(moment)
        process.kill()
        process.communicate()
        reached, saved = len(read_metrics(out)), case.saved(out)
        go_on(case, out)
        fits = process.returncode == -signal.SIGKILL and saved >= reached - 1
        what = f"fedpart run killed after {moment:.1f} s, in round {reached + 1}, resumed after {saved}"
        case.check(out, what, fits)
    return case.failures


def disk(folder: Path, kills: int, moments: random.Random) -> int:
    """Let the disk fill up while a checkpoint is written, make room, and resume."""
    case, small = Case(folder, 12), folder / "small"
    small.mkdir()
    checkpoint = (case.calm / CHECKPOINT).stat().st_size
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={int(2.6 * checkpoint)}", "tmpfs", small], check=True
    )
    try:
        out = small / "run"
        status, said = go_on(case, out)
        reached, saved, sentence = len(read_metrics(out)), case.saved(out), " ".join(said.split())
        print(f"disk full in round {reached}, exit status {status}: {sentence}")
        fits = status == 1 and "is full" in sentence and not list(out.glob("*.tmp"))
        fits &= saved >= max(1, reached - 1)
        subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
        status, _ = go_on(case, out)
        what = f"disk full in round {reached}, then resumed after {saved}"
        case.check(out, what, fits and status == 0)
    finally:
        subprocess.run(["umount", small], check=True)
    return case.failures


CASES: dict[str, Callable[[Path, int, random.Random], int]] = {
    "local": local,
    "serverapp": lambda *case: kill_deployed(*case, "ServerApp", kill_serverapp),
    "superlink": lambda *case: kill_deployed(*case, "SuperLink", kill_superlink),
    "executor": lambda *case: kill_deployed(*case, "executor", kill_executor),
    "worker": lambda *case: kill_deployed(*case, "worker", kill_worker),
    "supernode": lambda *case: kill_deployed(*case, "SuperNode", kill_supernode, on_client_error="fail"),
    "nodes": nodes,
    "disk": disk,
}


def main() -> None:
    """Run the cases that are asked for."""
    asked = parser(__doc__)
    asked.add_argument("case", choices=[*CASES, "all"], nargs="+")
    asked.add_argument("--kills", type=int, default=5, help="of each kind (nodes and disk: 1)")
    asked.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the moments")
    given = asked.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    print(f"seed {given.seed}", flush=True)
    failures = 0
    for name in CASES if "all" in given.case else given.case:
        print(f"{name}:", flush=True)
        kills = 1 if name in ("nodes", "disk") else given.kills
        with tempfile.TemporaryDirectory(prefix="crash-") as folder:
            failures += CASES[name](Path(folder), kills, random.Random(given.seed))
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
