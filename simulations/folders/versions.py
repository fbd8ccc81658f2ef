"""What computed the numbers of a run: versions of libraries, and the commit of this code."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import fedpart

_ROOT = Path(__file__).resolve().parents[2]


def versions() -> dict[str, str | None]:
    """Versions of what computes the numbers; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "fedpart": fedpart.__version__}
    for name in ("torch", "numpy", "flwr", "ray"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_commit() -> str | None:
    """Commit of the checkout that this code runs from, with ``+changes`` where its files are others.

    None if it runs from no checkout. Files that git does not track are not looked at.
    """
    try:
        if Path(_git("rev-parse", "--show-toplevel")).resolve() != _ROOT:
            return None  # installed inside of somebody else's repository
        return _git("describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+changes")
    except (OSError, subprocess.SubprocessError):  # no git, or no commit yet
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
