"""Ends of runs that come too early."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpart import RoundReport
from simulations.results.terminal.progress import Progress
from simulations.running.run import run_experiment


class Died(Exception):
    """Stands for the end of the process."""


def die() -> None:
    raise Died


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DiesAfter(Progress):
    """Ends a run after a round, when everything of that round is on the disk."""

    def __init__(self, round: int, end: Callable[[], None] = die) -> None:
        super().__init__(quiet=True)
        self.last, self.end = round, end

    def report(self, report: RoundReport) -> None:
        if report.round == self.last:
            self.end()


def killed(config: Any, out: Path, after: int | None = None) -> None:
    """A run in a process of its own that is killed after a round, or that kills itself."""
    options = {} if after is None else {"progress": DiesAfter(after, kill)}
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=run_experiment, args=(config, out), kwargs=options)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
