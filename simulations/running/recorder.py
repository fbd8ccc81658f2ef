"""What happens between the steps of a run: signals, checkpoints, lines of the metrics, loggers."""

import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from fedpart import Dataset
from fedpart.loggers import Loggers
from fedpart.training.state import ModelState
from fedpart.training.stopping import caught_signals
from simulations.errors import RunError, one_sentence
from simulations.folders.run_directory import Report, RunDirectory
from simulations.results.terminal.progress import Progress


class Interrupted(Exception):
    """SIGINT or SIGTERM stopped the run; a checkpoint is saved."""

    def __init__(self, signal_number: int, after: str) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after {after}")
        self.signal_number, self.after = signal_number, after


class Recorder:
    """What happens between a run's steps; ``safe``: it also saves after rounds longer than saving."""

    def __init__(
        self, run: RunDirectory, lines: list[dict[str, Any]], progress: Progress, state: ModelState,
        loggers: Loggers, watch: Callable[[dict[str, Any]], None] | None = None, at_a_time: int = 1,
        safe: bool = False,
    ) -> None:  # fmt: skip
        self.config, self.run, self.lines, self.progress, self.state = run.config, run, lines, progress, state
        self.stopped: list[int] = []  # the signals that came
        self.hurry: Callable[[], None] = lambda: None  # called when the first one comes
        self._saved = state.completed if run.has_checkpoint else -1
        self._safe, self._writing = safe, 0.0  # seconds
        self._unseen: Report | None = None
        self._loggers, self._watch = loggers, watch
        self._shared = {"runs_at_a_time": at_a_time} if at_a_time > 1 else {}

    def evaluate(self, report: Report, validation: Dataset, samples: int | None = None) -> None:
        """Add the scores on held-out data to a report, and their time; with at most so many samples."""
        if not len(validation):
            return
        start = time.perf_counter()
        with one_sentence(RunError, (ValueError,)):
            scores = self.state.validated(validation, samples)
        for name, value in scores.items():
            setattr(report, name, value)
        report.seconds += time.perf_counter() - start

    def record(self, report: Report, **more: Any) -> None:
        """Write and log a report's line; it is shown once the checkpoint that is due is there."""
        self.lines.append(self.run.record(report, **more, **self._shared))
        self._loggers.log(self.lines[-1])
        self._unseen = report

    def completed(self, last: bool) -> None:
        """After every step of the clock: the checkpoint that is due, and the end if a signal came."""
        count, seen = self.state.completed, False
        quick = self._safe and self.lines[-1]["seconds"] > self._writing
        if count % self.config.checkpoint_every == 0 or last or quick:
            self.save()
        self.progress.completed(count)
        if self._unseen is not None:
            self.progress.report(self._unseen)
            self._unseen, seen = None, True
        if self.stopped and not last:
            self.save()
            raise Interrupted(self.stopped[0], f"{self.config.clock.name} {count}")
        if seen and self._watch is not None:
            self._watch(self.lines[-1])

    def save(self) -> None:
        if self._saved < self.state.completed:
            start = time.monotonic()
            self.run.save(self.state)
            self._saved, self._writing = self.state.completed, time.monotonic() - start

    def begin(self) -> None:
        """Before the first step: the checkpoint that is there whatever happens, if there is to be one."""
        if self._safe:
            self.save()

    def signals(self) -> AbstractContextManager[None]:
        """Let SIGINT and SIGTERM end the run after the step in progress; a second one ends it at once."""
        return caught_signals(self.stopped, self._stop)

    def _stop(self) -> None:
        if len(self.stopped) > 1:
            signal.signal(self.stopped[-1], signal.SIG_DFL)
            raise KeyboardInterrupt
        self.hurry()
        self.progress.note(f"Stopping after this {self.config.clock.name} (once more to stop at once).")
