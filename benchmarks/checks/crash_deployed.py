"""What becomes of a deployed run whose processes are killed; it is held to a run that nothing happens to."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
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
    "clip": "adaptive",  # as deployed runs have it
}


class Case:
    """One kind of disturbance of a run of so many rounds, in a folder of its own."""

    def __init__(self, folder: Path, rounds: int, **changes: Any) -> None:
        self.failures = 0
        experiment = {**EXPERIMENT, "rounds": rounds, **changes}
        self.config = ExperimentConfig.from_dict(experiment)
        self.file, self.calm = folder / "crash.yaml", folder / "undisturbed"
        self.file.write_text(yaml.safe_dump(experiment))
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
        self.failures += not fits
        print(f"{what}: {outcome}{'' if fits else '  <-- FAILED'}", flush=True)


def fedpart(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from simulations.cli.main import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def go_on(case: Case, out: Path) -> tuple[int, str]:
    """Run ``fedpart run`` to its end, from where it is; the exit status and what it said."""
    process = fedpart("run", *(["--resume", out] if (out / CONFIG).exists() else [case.file, "--out", out]))
    _, errors = process.communicate()
    return process.returncode, errors


ROUND_TIMEOUT, SLACK = 300.0, 30.0  # seconds; Flower looks for replies every few


class CheckedDeployment(Deployment):
    """A federation for runs of an experiment."""

    def __init__(self, config: ExperimentConfig, folder: Path) -> None:
        super().__init__(config.clients, folder / "private", folder / "logs")
        self.config = config

    def run(
        self, out: Path, meanwhile: Callable[[threading.Event], None] = lambda over: None
    ) -> SubmittedRun:
        """A run until it has ended, however that is; ``meanwhile`` is told when it is over."""
        over = threading.Event()
        thread = threading.Thread(target=meanwhile, args=(over,))
        thread.start()
        try:
            id = self.control.start(deployed_run_config(self.config, out, (out / CONFIG).exists()))
            return watch(self, id, lambda text: None)
        finally:
            over.set()
            thread.join()


def kill_deployed(folder: Path, kills: int, moments: random.Random, victim: str) -> int:
    """Kill a process of a deployed run, which goes on by itself or is resumed."""
    case = Case(folder, 3, **({"on_client_error": "fail"} if victim == "SuperNode" else {}))
    with CheckedDeployment(case.config, folder) as federation:
        start = time.monotonic()
        federation.run(folder / "timed")
        seconds = time.monotonic() - start
        case.check(folder / "timed", f"deployed run left alone for {seconds:.0f} s")
        for number in range(kills):
            out, moment = folder / f"run-{number}", moments.uniform(0.0, 0.9) * seconds
            ended, reached, another = _struck(federation, out, moment, victim)
            while not reached and moment > 1.0:  # the run was quicker than the first: strike the next sooner
                out, moment = out.with_name(f"{out.name}-again"), moment / 2
                ended, reached, another = _struck(federation, out, moment, victim)
            how, fits = "went on by itself", bool(reached)
            if ended.completed:
                if victim == "ServerApp":  # before it took the run, which is given to another then
                    fits &= another and reached == [1]
            else:
                saved = case.saved(out)
                fits &= saved >= len(read_metrics(out)) - 1
                how = f"resumed after round {saved}"
                federation.run(out)
            when = f"killed after {moment:.1f} s, in round {reached[0]}" if reached else "NOT KILLED"
            case.check(out, f"{victim} {when}, {how}", fits)
    return case.failures


def _struck(
    federation: CheckedDeployment, out: Path, moment: float, victim: str
) -> tuple[SubmittedRun, list[int], bool]:
    """A run with a kill after so many seconds; the round that this was in, none if it had ended; and whether
    a ServerApp has been started since."""
    reached, before, since = list[int](), set[int](), set[int]()
    kill(federation, "ServerApp")  # that of the run before may be on its way out, and would be hit instead

    def strike(over: threading.Event) -> None:
        over.wait(moment)
        while not over.is_set():
            now = serverapps(federation)
            if reached:
                since.update(now - before)
            elif kill(federation, victim):
                before.update(now | serverapps(federation))
                reached.append(len(read_metrics(out)) + 1)
            over.wait(0.05)

    ended = federation.run(out, strike)
    return ended, reached, bool(since)


def serverapps(federation: Deployment) -> set[int]:
    """The processes that Flower has started for runs."""
    return _apps(federation, "serverapp")


def _apps(federation: Deployment, name: str) -> set[int]:
    executors = children(federation.processes.pid(name))
    return {app for executor in executors for app in children(executor)}


VICTIMS: dict[str, Callable[[Deployment], Iterable[int]]] = {
    "ServerApp": serverapps,  # the process that Flower has started for the run, if there is one yet
    "SuperLink": lambda federation: [federation.processes.pid("superlink")],  # started again, as the others
    "executor": lambda federation: children(federation.processes.pid("clientapp-0")),  # forks its workers
    "worker": lambda federation: _apps(federation, "clientapp-0"),  # if the client has one yet
    "SuperNode": lambda federation: [federation.processes.pid("supernode-0")],
}


def kill(federation: Deployment, victim: str) -> bool:
    """Kill processes of client 0 or of the server; whether there were any."""
    victims = list(VICTIMS[victim](federation))
    for process in victims:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(process, signal.SIGKILL)
    return bool(victims)


def nodes(folder: Path, kills: int, moments: random.Random) -> int:
    """Kill half of the SuperNodes and their executors in a round; they are started again."""
    case = Case(folder, 8, round_timeout=ROUND_TIMEOUT, on_client_error="skip")
    victims = range(case.config.clients // 2)
    with CheckedDeployment(case.config, folder) as federation:
        for number in range(kills):
            out, struck = folder / f"run-{number}", list[int]()

            def strike(over: threading.Event, out: Path = out, struck: list[int] = struck) -> None:
                while not read_metrics(out) and not over.wait(0.1):
                    pass
                over.wait(moments.uniform(0.0, 10.0))
                for client in [] if over.is_set() else victims:
                    for name in (f"supernode-{client}", f"clientapp-{client}"):
                        os.killpg(federation.processes.pid(name), signal.SIGKILL)
                    struck.append(client)

            ended = federation.run(out, strike)
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
        took_part = [
            client in line["cohort"] and client not in {skip["client"] for skip in line["skipped"]}
            for line in lines
        ]
        back = False in took_part and True in took_part[took_part.index(False) :]
        fits &= back
        what += f", {took_part.count(False)} without client {client}, which {'was' if back else 'NEVER'} back"
    return fits, what
