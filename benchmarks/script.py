"""What the scripts share: rows of JSON, times, processes of their own. The standard library will do."""

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
from pathlib import Path
from typing import TypeVar

Way = TypeVar("Way")


def tell(**row: object) -> None:
    print(json.dumps(row), flush=True)


def tell_versions(**settings: object) -> None:
    """The last row: on what all others were measured."""
    tell(**settings, torch=version("torch"), python=platform.python_version())


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turn(ways: Mapping[Way, Callable[[], object]], repeats: int) -> dict[Way, list[float]]:
    """Seconds of ``repeats`` calls of each way, after one to warm up; nobody always comes first."""
    times: dict[Way, list[float]] = {way: [] for way in ways}
    order = deque(ways)
    for _ in range(1 + repeats):
        for way in order:
            times[way].append(seconds(ways[way]))
        order.rotate()
    return {way: row[1:] for way, row in times.items()}


@contextmanager
def child(module: str, *arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """``python -m`` a module in a process of its own; its output can be read."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    settings = {**os.environ, "PYTHONPATH": path, **environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings) as process:
        yield process
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} has failed.")
