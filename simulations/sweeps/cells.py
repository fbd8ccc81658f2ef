"""Cells: the runs of a comparison or a selection, each in its own folder, done once."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from fedpart import ClientError, TrainingError
from simulations.building.experiment import DiskFull, RunError
from simulations.config.load import EVIDENCE_NAMES, Config, ConfigError, TrainingConfig
from simulations.folders.run_directory import holds_run, read_summary, saved_config
from simulations.folders.run_images import KnownImages, changed_images, in_short
from simulations.running.runner import Interrupted, run_experiment
from simulations.terminal.progress import Progress

Runner = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    """One run among others: what it is called, its configuration, and its folder."""

    name: str
    config: Config
    folder: Path

    def state(self, known: KnownImages | None = None) -> Literal["new", "started", "finished"]:
        """What its folder holds.

        Args:
            known: images that have been listed for other cells.

        Raises:
            ConfigError: a run with another configuration, or on other images; the message names what differs.
        """
        if not holds_run(self.folder):
            return "new"
        differing = changed(saved_config(self.folder).resolved(), deciding(self.config))
        differing += changed_images(self.folder, (known or KnownImages()).of(self.config))
        if differing:
            raise ConfigError(
                f"{self.folder} holds a run with other settings ({in_short(differing)}); choose another "
                f"folder with --out, or delete this one."
            )
        return "finished" if self.finished() else "started"

    def finished(self) -> bool:
        """Whether its folder holds the outcome of the whole run."""
        return read_summary(self.folder, self.config) is not None


@dataclass(frozen=True)
class Failed:
    """A cell that ended with an error: the sentence for people, the traceback for developers."""

    cell: Cell
    error: str
    traceback: str


def complete(
    cells: Sequence[Cell],
    *,
    run: Runner = run_experiment,
    jobs: int = 1,
    progress: Progress | None = None,
    console: Console,
) -> list[Failed]:
    """Run every cell that is not finished; those that failed.

    On a terminal each run shows its progress; elsewhere, and with several processes, a line when it is done.

    Args:
        cells: in the order in which they are run.
        run: what runs a cell; called like :func:`.run_experiment`.
        jobs: processes that run cells; with 1 this one does.
        progress: shows the runs of this process on a terminal; None shows nothing of them.
        console: where it is said how it goes on.

    Raises:
        ConfigError: see :meth:`Cell.state`; or the first run of all could not be set up.
        Interrupted, OSError, DiskFull: it stopped; finished cells stay, and started ones can be continued.
    """
    known = KnownImages()
    todo = [(cell, state) for cell in cells if (state := cell.state(known)) != "finished"]
    before = len(cells) - len(todo)
    if before:
        say(console, f"{before} of {len(cells)} runs were finished before and are not run again.")
    if len(todo) > 1 and (jobs > 1 or not console.is_terminal):
        say(console, f"{len(todo)} runs to do, {min(jobs, len(todo))} at a time.")
    if jobs > 1 and len(todo) > 1:
        from simulations.sweeps.parallel import complete_in_processes

        return complete_in_processes(
            [cell for cell, _ in todo], jobs, before, lambda text: say(console, text)
        )
    failures: list[Failed] = []
    for number, (cell, state) in enumerate(todo, start=1):
        shown = progress if console.is_terminal else None
        if console.is_terminal:
            say(console, f"Run {number} of {len(todo)}: {cell.name}")
        try:
            run(cell.config, cell.folder, resume=state == "started", progress=shown)
        except Interrupted:
            raise
        except Exception as error:  # one bad cell must not lose the others
            if ends_all(error, before + number - 1):
                raise
            failures.append(Failed(cell, in_words(error), "".join(traceback.format_exception(error))))
            say(console, f"Failed: {cell.name}: {failures[-1].error}")
            continue
        if not console.is_terminal:
            say(console, f"Finished {number - len(failures)} of {len(todo)}: {outcome(cell)}")
    return failures


def ends_all(error: Exception, ended: int) -> bool:
    """Whether a run that fails ends them all, for the others would fare no better.

    That is so if the disk or another process is in the way; and if the first run of all cannot be set up:
    nothing is lost yet, and most likely none can.

    Args:
        error: why it failed.
        ended: runs that have ended before it, well or not, now or earlier.
    """
    return isinstance(error, (OSError, DiskFull)) or (isinstance(error, ConfigError) and not ended)


def outcome(cell: Cell) -> str:
    """A finished cell in a line: ``kept 15, seed 0: L_ML -133.2, test accuracy 95.1%, 42.0 s``.

    A federated run's accuracy is that of its last evaluation, unlike the comparison's table.
    """
    summary = read_summary(cell.folder) or {}
    lml, seconds = summary.get("lml"), summary.get("seconds")
    part = "test" if isinstance(cell.config, TrainingConfig) else "val"
    accuracy, nll = (summary.get(f"{part}_{key}") for key in ("accuracy", "nll"))
    name = "test" if part == "test" else "validation"
    at = "" if part == "test" else " at the last evaluation"
    found = [
        "" if lml is None else f"{EVIDENCE_NAMES[summary.get('evidence', 'lml')]} {lml:,.1f}",
        "" if accuracy is None else f"{name} accuracy {accuracy:.1%}{at}",
        f"{name} loss {nll:.3f}{at}" if accuracy is None and nll is not None else "",
        "" if seconds is None else f"{seconds:,.1f} s",
    ]
    return f"{cell.name}: {', '.join(text for text in found if text) or 'done'}"


def in_words(error: Exception) -> str:
    """The error as a sentence; those that are not made for people keep their type."""
    expected = isinstance(error, (ClientError, RunError, TrainingError, ValueError))
    return str(error) if expected else f"{type(error).__name__}: {error}"


def say(console: Console, text: str) -> None:
    """A line as it is, without markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def deciding(config: Config) -> dict[str, Any]:
    """The keys that can change a number of a comparison's table, the seconds among them."""
    own = {"data_dir": config.data_dir} if config.folder_is_data else {}
    return config.deciding("numbers", "course") | own


def changed(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """What differs between two configurations, as ``rounds: 6 there, 8 here``, for every key of ``here``."""
    found = []
    for key, value in here.items():
        before = there.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            found += [f"{key}.{rest}" for rest in changed(before, {**dict.fromkeys(before), **value})]
        elif before != value:
            found.append(f"{key}: {before} there, {value} here")
    return found
