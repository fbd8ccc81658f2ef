"""Ends of runs that come too early."""

import os
import signal
from collections.abc import Callable

from fedpart import RoundReport
from simulations.results.terminal.progress import Progress


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
