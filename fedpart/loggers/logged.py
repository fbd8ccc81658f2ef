"""logged(): loggers around a run that has no folder of its own, with its metrics.jsonl."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedpart.loggers.base import RunInfo
from fedpart.loggers.lines import flat, metrics_line, step_of
from fedpart.loggers.printed import Printed
from fedpart.loggers.several import Loggers


@contextmanager
def logged(
    chosen: Sequence[Any],
    folder: str | Path | None = None,
    *,
    settings: Any = None,
    completed: int = 0,
    total: int = 0,
    progress: bool = False,
) -> Iterator[Callable[[Any], None]]:
    """Loggers around a run; what it gives is called with every report, as ``on_round`` is.

    Args:
        chosen: see :class:`.Loggers`.
        folder: for their files and a ``metrics.jsonl``, from which they get what they had when the run is
            resumed; None: a new one in ``runs/``, named by the time.
        settings: of the run, a dataclass, for tables of runs.
        completed: rounds or iterations that are done: later ones that the folder knows are computed again.
        total: how many there will be, for ``progress``.
        progress: whether lines are printed, see :class:`.Printed`.

    Raises:
        ValueError, ImportError: see :class:`.Loggers`.
    """
    loggers, printed = Loggers(chosen), Printed(total) if progress else None
    place = _place(folder) if loggers.keep else None
    lines = [] if place is None else _kept(place, completed)
    config = {} if settings is None else flat(asdict(settings))
    last = lines[-1] if lines else None

    def log(report: Any) -> None:
        nonlocal last
        last = metrics_line(report)
        if place is not None:
            with (place / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(last) + "\n")
        loggers.log(last)
        if printed is not None:
            printed(last)

    try:
        if place is not None:
            loggers.start(RunInfo(place, place.name, config, lines))
        yield log
        if last is not None:
            loggers.finish(last)
    finally:
        loggers.close()


def _place(folder: str | Path | None) -> Path:
    if folder is None:
        named, number = Path("runs") / time.strftime("%Y-%m-%d-%H%M%S"), 1
        folder = named
        while folder.exists():
            number += 1
            folder = named.with_name(f"{named.name}-{number}")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    return place


def _kept(place: Path, completed: int) -> list[Mapping[str, Any]]:
    """The lines of what is done; later ones, and one that was torn, leave the file."""
    file = place / "metrics.jsonl"
    whole = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
    lines = [line for line in map(json.loads, whole) if step_of(line) <= completed]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return lines
