"""Files that are replaced as a whole: a reader sees the old one or the new one, whenever the writer dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO


def replace(path: Path, write: Callable[[IO[bytes]], object], previous: Path | None = None) -> None:
    """Write a file beside ``path``, and put it in its place once it is on the disk.

    Args:
        previous: where the file that is replaced is kept; None: it is not.

    Raises:
        OSError: it cannot be written; the old file is as it was, and nothing is left of the new one.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            _keep(path, previous)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
            raise error.__context__ from None  # torch.save puts one of its own in front
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _keep(path: Path, previous: Path) -> None:
    """Keep a file as ``previous`` too, so that ``path`` is there at every moment."""
    previous.unlink(missing_ok=True)
    try:
        os.link(path, previous)
    except OSError:  # a file system without links: between the two renames only the previous one is there
        os.replace(path, previous)


def previous_of(path: Path) -> Path:
    """Where the checkpoint before the one in ``path`` is kept."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def kept(path: Path) -> list[Path]:
    """The checkpoints that exist of ``path`` and the one before, the latest first."""
    return [file for file in (path, previous_of(path)) if file.exists()]
