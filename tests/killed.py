"""A deployed run whose processes are killed."""

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import psutil

from simulations.deployment.up import Deployment

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


ROUND_TIMEOUT, SLACK = 300.0, 30.0  # seconds; Flower looks for replies every few


def children(parent: int) -> set[int]:
    """Processes that ``parent`` has started and that have not ended."""
    found = set()
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(parent).children():
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if child.status() != psutil.STATUS_ZOMBIE:
                    found.add(child.pid)
    return found


def serverapps(federation: Deployment) -> set[int]:
    """The processes that Flower has started for runs."""
    return _apps(federation, "serverapp")


def _apps(federation: Deployment, name: str) -> set[int]:
    return children(federation.processes.pid(name))


VICTIMS: dict[str, Callable[[Deployment], Iterable[int]]] = {
    "ServerApp": serverapps,  # the process that Flower has started for the run, if there is one yet
    "SuperLink": lambda federation: [federation.processes.pid("superlink")],  # started again, as the others
    "executor": lambda federation: [federation.processes.pid("clientapp-0")],  # forks its workers
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
