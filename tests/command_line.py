"""What a user types, and how an error looks to them."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from places import ROOT
from rich.console import Console
from typer.testing import CliRunner, Result

from simulations.cli.main import app


def fedpart(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeeds(*arguments: str | Path) -> Result:
    done = fedpart(*arguments)
    assert done.exit_code == 0, done.output
    return done


def begun(*arguments: str | Path, paths: str | Path = ROOT, **more: Any) -> subprocess.Popen:
    """The command in a process of its own; what it says comes through a pipe."""
    command = [sys.executable, "-c", "from simulations.cli.main import main; main()", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(paths), **more.pop("env", {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | more
    return subprocess.Popen(command, env=environment, text=True, **pipes)


def refused(result: Result, *wanted: str, status: int = 2) -> None:
    assert result.exit_code == status, result.output
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert "Traceback" not in result.output
    for part in wanted:
        assert part in result.stderr


def shown(thing: Any, width: int = 200) -> str:
    """What a terminal shows of it."""
    console = Console(width=width, file=(screen := io.StringIO()))
    console.print(thing)
    return screen.getvalue()
