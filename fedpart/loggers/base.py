"""Logger: what shows the numbers of a run while it is under way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpart.registry import Registry

Line = Mapping[str, Any]  # of metrics.jsonl, see metrics_line


@dataclass(frozen=True)
class RunInfo:
    """The run that a logger shows.

    Attributes:
        folder: for the logger's files; it exists, and is the same one when the run is resumed.
        name: of the run, for people.
        config: settings by name, ``server.learning_rate``, see :func:`.flat`.
        lines: of the rounds or reports that are done, ascending. Whatever else the logger has of this run is
            of a process that died, and will be computed again.
    """

    folder: Path
    name: str = "run"
    config: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    lines: Sequence[Line] = ()


class Logger:
    """Subclass it in a file of its own and register it: ``@LOGGERS.register("name")``.

    It is made with its options, before there is a run, and should refuse then what cannot work. Nothing that
    it does may reach the run. Whatever it raises while the run is under way ends the logger, not the run.
    """

    def start(self, run: RunInfo) -> None:
        """Begin, or go on: afterwards the logger has exactly the points of ``run.lines``."""

    def log(self, line: Line) -> None:
        """Show a line of ``metrics.jsonl``, see :func:`.metrics_line`; :func:`.scalars` has its numbers.

        It is called before the checkpoint that is due: what a checkpoint has behind it has been logged.
        """
        raise NotImplementedError

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Show what came out of a run that is complete: its ``summary.json``. Its pictures come later."""

    def show(self, pictures: Sequence[Path]) -> None:
        """Show pictures (PNG) of the run, after :meth:`finish`."""

    def close(self) -> None:
        """Let go of everything, also where :meth:`start` was not called or the run has failed."""


LOGGERS: Registry[Callable[..., Any]] = Registry("logger", makes=(Logger, type(None)))
