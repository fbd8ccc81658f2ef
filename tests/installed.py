"""The wheel, and what runs in environments that it is installed in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from places import ROOT

UV = Path(sys.executable).parent / "uv"  # it is a part of Flower, and has our build backend in it


def build_wheel(folder: Path) -> Path:
    """Build the checkout's wheel into a folder."""
    subprocess.run([UV, "build", "--wheel", "--offline", "-q", "-o", folder, ROOT], check=True)
    (file,) = folder.glob("*.whl")
    return file


def outside() -> dict[str, str]:
    """The environment, without variables that lead to the checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def call(folder: Path, *command: str | Path, status: int = 0) -> str:
    """What a command says, run in a folder and :func:`outside`; it must end so."""
    done = subprocess.run([*map(str, command)], cwd=folder, env=outside(), capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout
