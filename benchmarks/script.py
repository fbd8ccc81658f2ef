"""What the scripts share: rows of JSON, times, processes of their own. The standard library will do."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path


def tell(**row: object) -> None:
    print(json.dumps(row), flush=True)


def tell_versions(**settings: object) -> None:
    """The last row: on what all others were measured."""
    tell(**settings, torch=version("torch"), python=platform.python_version())


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


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
