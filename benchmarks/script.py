"""What the scripts share: rows of JSON, times, processes of their own. The standard library will do."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import TypeVar

Way = TypeVar("Way")


def tell(**row: object) -> None:
    """Print a row of JSON."""
    print(json.dumps(row), flush=True)


def tell_versions(**settings: object) -> None:
    """The last row: on what all others were measured."""
    tell(**settings, torch=version("torch"), python=platform.python_version())


def seconds(function: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turn(ways: Mapping[Way, Callable[[], object]], repeats: int) -> dict[Way, list[float]]:
    """Seconds of ``repeats`` calls of each way, after one to warm up; nobody always comes first."""
    found: dict[Way, list[float]] = {way: [] for way in ways}
    order = deque(ways)
    for _ in range(1 + repeats):
        for way in order:
            found[way].append(seconds(ways[way]))
        order.rotate()
    return {way: times[1:] for way, times in found.items()}


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser that describes a script by the first line of its docstring."""
    return argparse.ArgumentParser(description=(doc or "").partition("\n")[0])


@contextmanager
def child(file: str, *arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A script in a process of its own, see :func:`start`; its output can be read.

    Raises:
        SystemExit: it has failed.
    """
    command = [sys.executable, file, "--child", *map(str, arguments)]
    settings = {**os.environ, **environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings) as process:
        yield process
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} has failed.")


def start(main: Callable[[], int | None], run: Callable[..., object]) -> None:
    """Call ``main``, or ``run`` with what :func:`child` was given."""
    if sys.argv[1:2] == ["--child"]:
        run(*sys.argv[2:])
    else:
        sys.exit(main())
