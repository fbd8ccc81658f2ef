"""Tally: how the runs of a sweep have ended, counted and told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedpart import ClientError, TrainingError
from simulations.config.load import TrainingConfig
from simulations.errors import ConfigError, DiskFull, RunError
from simulations.folders.cell import Cell
from simulations.folders.run_directory import read_summary
from simulations.results.scores import EVIDENCES, first_of, score_of, words_of


class SweepIncomplete(RunError):
    """Some runs have no result; all others are on the disk.

    Args:
        found: what the others amount to.
        failures: sentences, of one or several failed runs each.
        failed: how many runs those are.
        runs: in all.
    """

    def __init__(self, found: object, failures: list[str], failed: int, runs: int) -> None:
        head = f"{failed} of {runs} runs failed; the same command runs them again."
        super().__init__("\n".join([head, *failures]))
        self.found = found


@dataclass
class Tally:
    """Counts the runs that end."""

    total: int  # runs to do
    before: int  # runs of the sweep that were finished earlier
    say: Callable[[str], None]  # tells a person
    done: int = 0  # runs that are finished
    # those that failed, each with a sentence for people and a traceback for developers
    failures: list[tuple[Cell, str, str]] = field(default_factory=list)

    def finished(self, cell: Cell, shown: bool = False) -> None:
        """Count a finished run, and say so unless it was ``shown``."""
        self.done += 1
        if not shown:
            self.say(f"Finished {self.done} of {self.total}: {_outcome(cell)}")

    def failed(self, cell: Cell, error: Exception, traceback: str) -> None:
        """Count a failed run, and say so."""
        self.failures.append((cell, in_words(error), traceback))
        self.say(f"Failed: {cell.name}: {in_words(error)}")

    def ends_all(self, error: Exception) -> bool:
        """Whether a run that fails like this ends them all, for the others would fare no better.

        That is so if the disk or another process is in the way; and if the first run of all cannot be set up:
        nothing is lost yet, and most likely none can.
        """
        ended = self.before + self.done + len(self.failures)
        return isinstance(error, (OSError, DiskFull)) or (isinstance(error, ConfigError) and not ended)


def in_words(error: Exception) -> str:
    """The error as a sentence; those that are not made for people keep their type."""
    expected = isinstance(error, (ClientError, RunError, TrainingError, ValueError))
    return str(error) if expected else f"{type(error).__name__}: {error}"


def _outcome(cell: Cell) -> str:
    """A finished cell in a line: ``kept 15, seed 0: L_ML -133.2, test accuracy 95.1%, 42.0 s``.

    A federated run's accuracy is that of its last evaluation, unlike the comparison's table.
    """
    summary = read_summary(cell.folder) or {}
    part, at = ("test", "") if isinstance(cell.config, TrainingConfig) else ("val", " at the last evaluation")
    key, lml = first_of(summary, f"{part}_"), summary.get("lml")
    evidence, seconds = EVIDENCES[summary.get("evidence", "lml")], summary.get("seconds")
    found = [
        "" if lml is None else f"{evidence.word} {evidence.number(lml)}",
        "" if key is None else f"{words_of(key)} {score_of(key).text(summary[key])}{at}",
        "" if seconds is None else f"{seconds:,.1f} s",
    ]
    return f"{cell.name}: {', '.join(text for text in found if text) or 'done'}"
