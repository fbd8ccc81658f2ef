"""logged(): loggers around a run that has no folder of its own, with its metrics.jsonl."""

import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, count
from pathlib import Path
from typing import Any

from fedpart.loggers.base import Loggers, RunInfo
from fedpart.loggers.lines import flat, in_words, metrics_line, step_of

EACH = 10  # rounds that have a line of their own, before only those of evaluations have


def worth_a_line(clock: str, count: int, total: int, every: int) -> bool:
    """Whether a line is printed where nothing that stands there can be changed.

    So are the first rounds, those that an evaluation is due in (whether or not there is one), the last one,
    and all reports of centralised training."""
    return clock != "round" or count <= EACH or count % every == 0 or count == total


class Printed:
    """Prints lines of ``metrics.jsonl`` in words, see :func:`worth_a_line`; on a terminal the others flit by.

    Of a run of ``total`` rounds or iterations, ``every`` so many an evaluation."""

    def __init__(self, total: int, every: int) -> None:
        self._total, self._every = total, every

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Print a line, on the standard output."""
        clock = "round" if "round" in line else "iteration"
        text, terminal = f"{clock} {step_of(line)}/{self._total}: {in_words(line)}", sys.stdout.isatty()
        if terminal:
            text = f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}"
        if worth_a_line(clock, step_of(line), self._total, self._every):
            print(text, flush=True)
        elif terminal:
            print(text, end="", flush=True)


@contextmanager
def logged(
    chosen: Sequence[Any], folder: str | Path | None = None, settings: Any = None, completed: int = 0,
    printed: Printed | None = None,
) -> "Iterator[Logged]":  # fmt: skip
    """Loggers around a run; what it gives is called with every report, as ``on_round`` is.

    Args:
        chosen: see :class:`.Loggers`, also for what is raised.
        folder: for their files and a ``metrics.jsonl``, of which the result has its reports, and they what
            they had, when the run is resumed; None: where they want one, a new one in ``runs/``, named by the
            time.
        settings: of the run, a dataclass, for tables of runs.
        completed: rounds or iterations that are done: later ones that the folder knows are computed again.
        printed: prints lines, too.
    """
    loggers = Loggers(chosen)
    place = _place(folder) if loggers.keep or folder is not None else None
    lines = [] if place is None else _kept(place, completed)
    config = {} if settings is None else flat(asdict(settings))
    log = Logged(loggers, place, printed, lines)
    try:
        if place is not None:
            if any(name.startswith("privacy.") for name in config):
                place.chmod(0o700)
            loggers.start(RunInfo(place, place.name, config, lines))
        yield log
        if log.last is not None and log.complete:
            loggers.finish({**log.last, **log.scores})
    finally:
        loggers.close()


class Logged:
    """Takes the reports of a run."""

    def __init__(
        self, loggers: Loggers, place: Path | None, printed: Printed | None, kept: list[Mapping[str, Any]]
    ) -> None:
        self._loggers, self._place, self._printed = loggers, place, printed
        self.kept = kept  # lines of what was done before
        self.last = kept[-1] if kept else None  # line of metrics.jsonl, of which loggers make the summary
        self.complete = True  # whether nothing is left to do
        self.scores: dict[str, float | None] = {}  # what it has besides, such as test_accuracy

    def __call__(self, report: Any) -> None:
        """Write, log and print a report."""
        self.last = metrics_line(report)
        if self._place is not None:
            with (self._place / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.last) + "\n")
        self._loggers.log(self.last)
        if self._printed is not None:
            self._printed(self.last)


def untaken(folder: Path) -> Path:
    """The folder, or one with a number appended if there is one of its name."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(place for place in chain([folder], numbered) if not place.exists())


def _place(folder: str | Path | None) -> Path:
    new = Path("runs") / time.strftime("%Y-%m-%d-%H%M%S")
    place = untaken(new) if folder is None else Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    return place


def _kept(place: Path, completed: int) -> list[Mapping[str, Any]]:
    """The lines of what is done; later ones, and one that was torn, leave the file."""
    file, lines = place / "metrics.jsonl", []
    whole = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    for number, text in enumerate(whole, start=1):
        try:
            if step_of(line := json.loads(text)) <= completed:
                lines.append(line)
        except (ValueError, LookupError, TypeError, StopIteration, RecursionError):
            raise ValueError(
                f"Line {number} of {file} is damaged; delete that file and resume again: the weights are in "
                f"the checkpoint, and only what was told of earlier rounds is lost."
            ) from None
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return lines
