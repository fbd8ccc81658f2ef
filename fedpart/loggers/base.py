"""Logger: what shows the numbers of a run while it is under way."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpart.checks import is_list, require
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


class Loggers:
    """The loggers of a run, in their order.

    One that fails while the run is under way is left out from then on, with a warning: its points are there
    again when the run is resumed.

    Args:
        chosen: of each its name, or ``{"use": name, "options": {...}}``; names are registered, or
            ``package.module:callable``. Or an object: a :class:`.Logger`, or a function, as which a named
            one may also be given. A function is called with every new line of ``metrics.jsonl``, and with
            the options by name.

    Raises:
        ValueError: a name is unknown, options do not fit, or what is named is no logger.
        ImportError: a logger's library is not installed.
    """

    def __init__(self, chosen: Sequence[Any]) -> None:
        require(is_list(chosen), f"loggers is a list, got {chosen!r}; write [{chosen!r}].")
        self._loggers = [_made(logger) for logger in chosen]

    @property
    def keep(self) -> bool:
        """Whether any but plain functions is among them, so that there is something to keep in a folder."""
        return any(not isinstance(logger, _Function) for _, logger in self._loggers)

    def __len__(self) -> int:
        return len(self._loggers)

    def start(self, run: RunInfo) -> None:
        """See :meth:`.Logger.start`; a ValueError if one of them cannot."""
        if self._loggers and any(name.startswith("privacy.") for name in run.config):
            private = "train_loss, cohort, replies, skipped and refused are not covered by epsilon"
            who = "show them to those alone who may see the clients' data."
            lines = "Loggers get whole lines of metrics.jsonl, of which"
            warnings.warn(f"{lines} {private}; {who}", RuntimeWarning, stacklevel=2)
        for name, logger in self._loggers:
            try:
                logger.start(run)
            except Exception as error:  # a server that does not answer, an account that is none, ...
                fails = f"The logger {name} cannot start ({error})"
                raise ValueError(f"{fails}; mend or leave it out.") from error

    def log(self, line: Line) -> None:
        """See :meth:`.Logger.log`."""
        self._each(lambda logger: logger.log(line))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """See :meth:`.Logger.finish`."""
        self._each(lambda logger: logger.finish(summary))

    def show(self, pictures: Sequence[Path]) -> None:
        """See :meth:`.Logger.show`."""
        self._each(lambda logger: logger.show(pictures))

    def close(self) -> None:
        """See :meth:`.Logger.close`."""
        self._each(lambda logger: logger.close())
        self._loggers = []

    def _each(self, act: Callable[[Logger], None]) -> None:
        for name, logger in list(self._loggers):
            try:
                act(logger)
            except Exception as error:
                self._loggers.remove((name, logger))
                failed = f"The logger {name} has failed ({type(error).__name__}: {error})"
                warnings.warn(f"{failed}; the run goes on without it.", RuntimeWarning, stacklevel=4)


class _Function(Logger):
    """A function of a line and options."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._function, self._options = function, options

    def log(self, line: Line) -> None:
        self._function(line, **self._options)


def _made(chosen: Any) -> tuple[str, Logger]:
    """A name for people, and the logger."""
    name, logger, options = getattr(chosen, "__name__", type(chosen).__name__), chosen, dict[str, Any]()
    if isinstance(chosen, str | Mapping):
        keys: dict[str, Any] = {"use": chosen} if isinstance(chosen, str) else dict(chosen)
        name, options = keys.pop("use", None), keys.pop("options", {})
        known = not keys and isinstance(name, str)
        require(known, f"A logger is a name, or has the keys use and options, got {chosen!r}.")
        logger = LOGGERS.resolve(name)
        if isinstance(logger, type):
            logger, options = LOGGERS.make(name, options), {}
    if isinstance(logger, Logger):
        return name, logger
    if callable(logger) and not isinstance(logger, type):
        return name, _Function(logger, options)
    such = f"a name ({', '.join(LOGGERS.names())}), a function of a line of metrics.jsonl"
    raise ValueError(f"{name!r} is no logger; give {such}, or a fedpart.loggers.Logger.")
