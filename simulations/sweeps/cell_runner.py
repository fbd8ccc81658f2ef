"""CellRunner: runs the cells of a sweep that are not finished, here or in processes of their own."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from simulations.folders.cell import Cell
from simulations.folders.data_files import KnownData
from simulations.running.run import run_experiment
from simulations.running.signals import Interrupted
from simulations.sweeps.parallel import complete_in_processes
from simulations.sweeps.tally import Tally
from simulations.terminal.progress import Progress


@dataclass(frozen=True)
class CellRunner:
    """How the cells of a sweep are run and shown."""

    jobs: int = 1  # processes that run cells; with 1 this one does
    run: Callable[..., dict[str, Any]] = run_experiment  # what runs a cell in this process
    progress: Progress | None = None  # shows the runs of this process on a terminal; None: nothing of them
    console: Console = field(default_factory=Console)  # for how it goes on, and what was found

    def say(self, text: str) -> None:
        """A line as it is, without markup."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def complete(self, cells: Sequence[Cell]) -> list[tuple[Cell, str, str]]:
        """Run every cell that is not finished, in this order; those that failed, as :class:`.Tally` has them.

        Without a terminal, and with several processes, a run shows no progress but a line when it is done.

        Raises:
            ConfigError: see :meth:`.Cell.state`; or the first run of all could not be set up.
            Interrupted, OSError, DiskFull: it stopped; finished cells stay, started ones can be continued.
        """
        known = KnownData()
        todo = [(cell, state) for cell in cells if (state := cell.state(known)) != "finished"]
        tally = Tally(len(todo), len(cells) - len(todo), self.say)
        if tally.before:
            self.say(f"{tally.before} of {len(cells)} runs were finished before and are not run again.")
        shown = self.console.is_terminal
        if len(todo) > 1 and (self.jobs > 1 or not shown):
            self.say(f"{len(todo)} runs to do, {min(self.jobs, len(todo))} at a time.")
        if self.jobs > 1 and len(todo) > 1:
            complete_in_processes([cell for cell, _ in todo], self.jobs, tally)
            return tally.failures
        for number, (cell, state) in enumerate(todo, start=1):
            if shown:
                self.say(f"Run {number} of {len(todo)}: {cell.name}")
            try:
                progress = self.progress if shown else None
                self.run(cell.config, cell.folder, resume=state == "started", progress=progress)
            except Exception as error:  # one bad cell must not lose the others
                if isinstance(error, Interrupted) or tally.ends_all(error):
                    raise
                tally.failed(cell, error, traceback.format_exc())
            else:
                tally.finished(cell, shown)
        return tally.failures
