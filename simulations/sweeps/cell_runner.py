"""CellRunner: makes runs that belong together, here or in processes of their own, and tells how they end."""

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from simulations.config.load import TrainingConfig
from simulations.errors import ConfigError, DiskFull, RunError
from simulations.folders.cell import Cell
from simulations.folders.data_files import KnownData
from simulations.folders.run_directory import holds_run, read_summary
from simulations.results.scores import EVIDENCES, first_of, score_of, shown, words_of
from simulations.results.terminal.progress import Progress
from simulations.running.recorder import Interrupted
from simulations.running.run import run_experiment
from simulations.sweeps.parallel import Ended, Pruned, Take, Watch, in_words, run_in_processes

Failed = tuple[Cell, str, str]
"""A cell that failed, with a sentence for people and a traceback for developers."""
T = TypeVar("T")


class SweepIncomplete(RunError):
    """Some runs have no result; all others are on the disk, and ``found`` is what they amount to."""

    def __init__(self, found: object, failures: Sequence[str], failed: int, runs: int) -> None:
        head = f"{failed} of {runs} runs failed; the same command runs them again."
        super().__init__("\n".join([head, *failures]))
        self.found = found


@dataclass(frozen=True)
class CellRunner:
    """How runs are made and shown."""

    jobs: int = 1  # processes that make them; with 1 this one does
    run: Callable[..., dict[str, Any]] = run_experiment  # what makes one in this process
    progress: Progress | None = None  # shows the runs of this process on a terminal; None: nothing of them
    console: Console = field(default_factory=Console)  # for how it goes on, and what was found

    def say(self, text: str) -> None:
        """A line as it is, without markup."""
        self.console.print(shown(text), markup=False, highlight=False, soft_wrap=True)

    def each(self, take: Take, jobs: int, ended: Ended, watch: Watch | None = None) -> int | None:
        """Make the runs that are asked for; see :func:`.run_in_processes`. With one job this process does."""
        if jobs > 1:
            return run_in_processes(take, jobs, ended, self.say, watch)
        progress = self.progress if self.console.is_terminal else None

        def ask(line: dict[str, Any]) -> None:
            if watch is not None and watch(run, line):
                raise Pruned

        while (run := take([])) is not None:
            told: tuple[Exception | None, str] = None, ""
            more = {} if watch is None else {"watch": ask}
            try:
                self.run(run.config, run.folder, resume=holds_run(run.folder), progress=progress, **more)
            except Interrupted:
                raise
            except Exception as error:  # one bad run must not lose the others
                told = error, traceback.format_exc()
            ended(run, *told)
        return None

    def complete(self, cells: Sequence[Cell]) -> list[Failed]:
        """Make the runs that are not finished, after those they take psi from; those that have failed."""
        known = KnownData()
        todo = [cell for cell in cells if cell.state(known) != "finished"]
        waiting, total, before = list(todo), len(todo), len(cells) - len(todo)
        jobs = max(1, min(self.jobs, total))
        shown = self.console.is_terminal and jobs == 1
        if before:
            self.say(f"{before} of {len(cells)} runs were finished before and are not run again.")
        if total > 1 and not shown:
            self.say(f"{total} runs to do, {jobs} at a time.")
        done, failures = 0, list[Failed]()

        def take(running: Sequence[Cell]) -> Cell | None:
            unfinished = {cell.folder.absolute() for cell in running}
            for cell in waiting:
                if cell.config.psi_from is None or Path(cell.config.psi_from).absolute() not in unfinished:
                    waiting.remove(cell)
                    if shown:
                        self.say(f"Run {total - len(waiting)} of {total}: {cell.name}")
                    return cell
                unfinished.add(cell.folder.absolute())
            return None

        def ended(cell: Cell, error: Exception | None, trace: str) -> None:
            nonlocal done
            if error is None:
                done += 1
                if not shown:
                    self.say(f"Finished {done} of {total}: {_outcome(cell)}")
                return
            first = isinstance(error, ConfigError) and not (before or done or failures)
            if first or isinstance(error, (OSError, DiskFull)):  # the others would fare no better
                raise error
            failures.append((cell, in_words(error), trace))
            self.say(f"Failed: {cell.name}: {in_words(error)}")

        if (number := self.each(take, jobs, ended)) is not None:
            raise Interrupted(number, f"{done} of {total} runs")
        return failures

    def conclude(
        self, outcome: Any, remarks: Sequence[str], failed: Sequence[Failed], runs: int,
        failures: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        """Show what runs amount to, once it is written; None: nothing."""
        if outcome is not None:
            self.console.print(outcome.table())
        for text in remarks:
            self.say(text)
        if failed:
            each = failures or [f"{cell.name}: {error}" for cell, error, _ in failed]
            raise SweepIncomplete(outcome, each, len(failed), runs)


def gathered(
    cells: Iterable[Cell], row: Callable[[Cell], str], read: Callable[[Cell], T | None]
) -> dict[str, list[T]]:
    """What is read of cells, by row and in their order, without those of which there is nothing."""
    rows: dict[str, list[T]] = {}
    for cell in cells:
        rows.setdefault(row(cell), []).extend([] if (value := read(cell)) is None else [value])
    return rows


def summaries(cells: Iterable[Cell]) -> dict[str, list[dict[str, Any]]]:
    """Of finished cells, by the name of their row's folder."""
    return gathered(
        cells, lambda cell: cell.folder.parent.name, lambda cell: read_summary(cell.folder, cell.config)
    )


def _outcome(cell: Cell) -> str:
    """A finished cell in a line: ``kept 15, seed 0: L_ML -133.2, test accuracy 95.1%, 42.0 s``."""
    summary = read_summary(cell.folder) or {}
    part, at = ("test", "") if isinstance(cell.config, TrainingConfig) else ("val", " at the last evaluation")
    key, lml = first_of(summary, f"{part}_"), summary.get("lml")
    evidence, seconds = EVIDENCES[summary.get("evidence", "lml")], summary.get("seconds")
    texts = [
        "" if lml is None else f"{evidence.word} {evidence.number(lml)}",
        "" if key is None else f"{words_of(key)} {score_of(key).text(summary[key])}{at}",
        "" if seconds is None else f"{seconds:,.1f} s",
    ]
    return f"{cell.name}: {', '.join(text for text in texts if text) or 'done'}"
