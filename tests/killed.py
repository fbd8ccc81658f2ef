"""A deployed run whose processes are killed."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
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


def children(parent: int) -> set[int]:
    """Processes that ``parent`` has started and that have not ended."""
    found = set()
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(parent).children():
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if child.status() != psutil.STATUS_ZOMBIE:
                    found.add(child.pid)
    return found


VICTIMS: dict[str, Callable[[Deployment], Iterable[int]]] = {
    # the process that Flower has started for the run, if there is one yet
    "ServerApp": lambda federation: children(federation.processes.pid("serverapp")),
    "SuperLink": lambda federation: [federation.processes.pid("superlink")],  # started again, as the others
}


def kill(federation: Deployment, victim: str) -> bool:
    """Kill processes of the server; whether there were any."""
    victims = list(VICTIMS[victim](federation))
    for process in victims:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(process, signal.SIGKILL)
    return bool(victims)


@contextmanager
def meanwhile(do: Callable[[threading.Event], None]) -> Iterator[None]:
    """Does it in a thread of its own, which is told when what is within is over."""
    over = threading.Event()
    thread = threading.Thread(target=do, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
