"""What kill -9, a full disk and vanishing nodes do to a run: ``python benchmarks/checks/crash.py all``.

Kills a local ``fedpart run``, or a process of a deployed one, at random moments, lets the run go on, and
compares its final weights with those of a run that nothing happened to, to the bit. A client that loses its
SuperNode has not answered, which ends that run here, and is resumed.
``nodes`` kills half of the SuperNodes in a round; ``disk`` lets a small tmpfs fill up during a checkpoint
(this takes root). Exit status 1 if a run does not end as it should.
"""

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.checks.crash_deployed import VICTIMS, Case, fedpart, go_on, kill_deployed, nodes
from simulations.folders.run_directory import CHECKPOINT, read_metrics

ROOT = Path(__file__).parents[2]


def local(folder: Path, kills: int, moments: random.Random) -> int:
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
    **{name.lower(): partial(kill_deployed, victim=name) for name in VICTIMS},
    "nodes": nodes,
    "disk": disk,
}


def main(case: list[str], kills: int = 5, seed: Annotated[int | None, typer.Option()] = None) -> None:
    """Run the cases that are asked for, or all; so many kills of each kind, at moments of that seed."""
    if unknown := {*case} - {*CASES, "all"}:
        raise typer.BadParameter(f"There is no case {', '.join(unknown)}; known: all, {', '.join(CASES)}.")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    seed = random.randrange(10**6) if seed is None else seed
    print(f"seed {seed}", flush=True)
    failures = 0
    for name in CASES if "all" in case else case:
        print(f"{name}:", flush=True)
        with tempfile.TemporaryDirectory(prefix="crash-") as folder:
            once = name in ("nodes", "disk")
            failures += CASES[name](Path(folder), 1 if once else kills, random.Random(seed))
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    typer.run(main)
