"""What kill -9, a full disk and vanishing nodes do to a run: ``python benchmarks/checks/crash.py all``.

Kills a local ``fedpart run``, or the ServerApp or the SuperLink of a deployed one, at random moments, lets
the run go on, and compares its final weights with those of a run that nothing happened to, to the bit.
``nodes`` kills half of the SuperNodes in a round; ``disk`` lets a small tmpfs fill up during a checkpoint
(this takes root). Exit status 1 if a run does not end as it should.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from fedpart.flower.workarounds.control import SubmittedRun
from fedpart.flower.workarounds.executor import children
from fedpart.training.files import kept
from simulations.building.experiment import build
from simulations.config.load import ExperimentConfig
from simulations.deployment.up import Deployment, watch
from simulations.flower.config import deployed_run_config
from simulations.folders.run_directory import CHECKPOINT, CONFIG, STATE, read_metrics
from simulations.running.run import run_experiment

ROOT = Path(__file__).parents[2]
EXPERIMENT: dict[str, Any] = {
    "data": "digits",
    "training_points": 60,
    "validation_points": 20,
    "test_points": 20,
    "model": "digits_cnn",
    "clients": 2,
    "cohort": 2,
    "chunks": [0.5, 0.5],
    "samples": 2,
    "checkpoint_every": 1,
}
ROUND_TIMEOUT, SLACK = 300.0, 30.0  # seconds; Flower looks for replies every few


class Case:
    """One kind of disturbance, in a folder of its own.

    Args:
        folder: where runs are kept.
        rounds: of each.
        changes: of the experiment.
    """

    def __init__(self, folder: Path, rounds: int, **changes: Any) -> None:
        self.folder, self.failures = folder, 0
        self.config = ExperimentConfig.from_dict({**EXPERIMENT, "rounds": rounds, **changes})
        self.file, self.calm = folder / "crash.yaml", folder / "undisturbed"
        self.file.write_text(yaml.safe_dump({**EXPERIMENT, "rounds": rounds, **changes}))
        run_experiment(self.config, self.calm)

    def check(self, out: Path, what: str, fits: bool = True) -> None:
        """Compare the weights of a run with the undisturbed one's, and say what has been done to it."""
        same = (out / STATE).exists() and (out / STATE).read_bytes() == (self.calm / STATE).read_bytes()
        skipped = [(line["round"], skip) for line in read_metrics(out) for skip in line["skipped"]]
        self.tell(what, "bit-identical" if same else f"DIFFERENT {skipped}", same and fits)

    def saved(self, out: Path) -> int:
        """Rounds in what a run is resumed from: one that has lost it has the same weights in the end."""
        state = build(self.config).start()
        try:
            if kept(out / CHECKPOINT):
                state.load(out / CHECKPOINT)
        except ValueError as error:
            print(error)
        return state.completed

    def tell(self, what: str, outcome: str, fits: bool) -> None:
        """A line of the report."""
        self.failures += not fits
        print(f"{what}: {outcome}{'' if fits else '  <-- FAILED'}", flush=True)


def fedpart(*arguments: object) -> subprocess.Popen[str]:
    """Start the command."""
    command = [
        sys.executable,
        "-c",
        "from simulations.cli.main import main; main()",
        *map(str, arguments),
    ]
    return subprocess.Popen(
        command, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def go_on(case: Case, out: Path) -> tuple[int, str]:
    """Run ``fedpart run`` to its end, from where it is; the exit status and what it said."""
    process = fedpart("run", *(["--resume", out] if (out / CONFIG).exists() else [case.file, "--out", out]))
    _, errors = process.communicate()
    return process.returncode, errors


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


@contextmanager
def deployed(case: Case, private: Path) -> Iterator[tuple[Deployment, Callable[[Path], SubmittedRun]]]:
    """A federation, and what runs the case's experiment on it until the run has ended, however that is."""
    config = case.config
    with Deployment(config.clients, private, case.folder / "logs") as federation:

        def run(out: Path) -> SubmittedRun:
            resume = (out / CONFIG).exists()
            id = federation.control.start(deployed_run_config(config, out, resume))
            return watch(federation, id, lambda text: None)

        yield federation, run


def kill_deployed(
    folder: Path, kills: int, moments: random.Random, victim: str, kill_one: Callable[[Deployment], bool]
) -> int:
    """Kill a process of a deployed run, which goes on by itself or, without ServerApp, is resumed."""
    case, private = Case(folder, 3), folder / "private"
    with deployed(case, private) as (federation, run):
        start = time.monotonic()
        run(folder / "timed")
        seconds = time.monotonic() - start
        case.check(folder / "timed", f"deployed run left alone for {seconds:.0f} s")
        for kill in range(kills):
            out, moment = folder / f"run-{kill}", moments.uniform(0.0, 0.9) * seconds
            ended, reached, another = _struck(federation, run, out, moment, kill_one)
            while not reached and moment > 1.0:  # the run was quicker than the first: strike the next sooner
                out, moment = out.with_name(f"{out.name}-again"), moment / 2
                ended, reached, another = _struck(federation, run, out, moment, kill_one)
            how, fits = "went on by itself", bool(reached)
            if ended.completed:
                if kill_one is kill_serverapp:  # before it took the run, which is given to another one then
                    fits &= another and reached == [1]
            else:
                saved = case.saved(out)
                fits &= saved >= len(read_metrics(out)) - 1
                how = f"resumed after round {saved}"
                run(out)
            when = f"killed after {moment:.1f} s, in round {reached[0]}" if reached else "NOT KILLED"
            case.check(out, f"{victim} {when}, {how}", fits)
    return case.failures


def _struck(
    federation: Deployment,
    run: Callable[[Path], SubmittedRun],
    out: Path,
    moment: float,
    kill_one: Callable[[Deployment], bool],
) -> tuple[SubmittedRun, list[int], bool]:
    """A run with a kill after so many seconds; the round that this was in, none if it had ended; and whether
    a ServerApp has been started since."""
    over, reached, before, since = threading.Event(), list[int](), set[int](), set[int]()
    kill_serverapp(federation)  # that of the run before may be on its way out, and would be hit instead

    def strike() -> None:
        over.wait(moment)
        while not over.is_set():
            now = serverapps(federation)
            if reached:
                since.update(now - before)
            elif kill_one(federation):
                before.update(now | serverapps(federation))
                reached.append(len(read_metrics(out)) + 1)
            over.wait(0.05)

    thread = threading.Thread(target=strike)
    thread.start()
    ended = run(out)
    over.set()
    thread.join()
    return ended, reached, bool(since)


def serverapps(federation: Deployment) -> set[int]:
    """The processes that Flower has started for runs."""
    executors = children(federation.processes.pid("serverapp"))
    return {app for executor in executors for app in children(executor)}


def kill_serverapp(federation: Deployment) -> bool:
    """Kill the process that Flower has started for the run, if there is one yet."""
    apps = serverapps(federation)
    for app in apps:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(app, signal.SIGKILL)
    return bool(apps)


def kill_superlink(federation: Deployment) -> bool:
    """Kill the SuperLink, which is started again."""
    os.kill(federation.processes.pid("superlink"), signal.SIGKILL)
    return True


def nodes(folder: Path, kills: int, moments: random.Random) -> int:
    """Kill half of the SuperNodes and their executors in a round; they are started again."""
    case = Case(folder, 8, round_timeout=ROUND_TIMEOUT, on_client_error="skip")
    victims = range(case.config.clients // 2)
    with deployed(case, folder / "private") as (federation, run):
        for kill in range(kills):
            out, over, struck = folder / f"run-{kill}", threading.Event(), list[int]()

            def strike(out: Path = out, over: threading.Event = over, struck: list[int] = struck) -> None:
                while not read_metrics(out) and not over.wait(0.1):
                    pass
                over.wait(moments.uniform(0.0, 10.0))
                for client in [] if over.is_set() else victims:
                    for name in (f"supernode-{client}", f"clientapp-{client}"):
                        os.killpg(federation.processes.pid(name), signal.SIGKILL)
                    struck.append(client)

            thread = threading.Thread(target=strike)
            thread.start()
            ended = run(out)
            over.set()
            thread.join()
            fits, what = survived(read_metrics(out), victims, case.config.rounds)
            what = f"half of the SuperNodes killed: {what}"
            case.tell(what, ended.status, fits and ended.completed and struck == list(victims))
    return case.failures


def survived(lines: list[dict[str, Any]], victims: Iterable[int], rounds: int) -> tuple[bool, str]:
    """Whether a run's metrics are those of one that missed the victims for a while and then had them back."""
    longest = max((line["seconds"] for line in lines), default=0.0)
    refused = {category for line in lines for category in line["refused"]}
    fits = len(lines) == rounds and longest < ROUND_TIMEOUT + SLACK
    fits &= refused <= {"client_error", "no_answer"}  # 'chunk' would be another chunk than before
    what = f"the longest of {len(lines)} rounds took {longest:.0f} s, refused for {sorted(refused)}"
    for client in victims:
        there = [
            client in line["cohort"] and client not in {skip["client"] for skip in line["skipped"]}
            for line in lines
        ]
        back = False in there and True in there[there.index(False) :]
        fits &= back
        what += f", {there.count(False)} without client {client}, which {'was' if back else 'NEVER'} back"
    return fits, what


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
    "nodes": nodes,
    "disk": disk,
}


def main() -> None:
    """Run the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=[*CASES, "all"], nargs="+")
    parser.add_argument("--kills", type=int, default=5, help="of each kind (nodes and disk: 1)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the moments")
    given = parser.parse_args()
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
