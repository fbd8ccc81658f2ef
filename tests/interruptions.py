"""Ends of runs that come too early."""

from fedpart import RoundReport
from simulations.terminal.progress import Progress


class Died(Exception):
    """Stands for the end of the process."""


class DiesAfter(Progress):
    """Ends a run after a round, when everything of that round is on the disk."""

    def __init__(self, round: int) -> None:
        super().__init__(quiet=True)
        self.last = round

    def report(self, report: RoundReport) -> None:
        if report.round == self.last:
            raise Died
