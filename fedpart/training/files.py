"""Files that are replaced as a whole, whenever the writer dies, and seals, which tell a changed one."""

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

SEAL = "seal"


def replace(path: Path, write: Callable[[IO[bytes]], object], previous: Path | None = None) -> None:
    """Write a file beside ``path``, and put it in its place once it is on the disk.

    The file that is replaced is kept as ``previous``, if given. Where it cannot be written (OSError) the old
    file is as it was, and nothing is left of the new one."""
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
    _to_disk(path.parent)


def append(path: Path, content: bytes) -> None:
    """Add to a file, which need not be there; when this returns, all of it is on the disk."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if new:
        _to_disk(path.parent)


def _to_disk(folder: Path) -> None:
    """Put the names of a folder's files on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remembered(kind: str, key: str | bytes) -> Path:
    """A file outside of all runs' folders, in which this user's runs remember something."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    digest = hashlib.sha256(key if isinstance(key, bytes) else key.encode()).hexdigest()
    return Path(state).expanduser() / "fedpart" / kind / digest


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


def companion(path: str | Path, kind: str, resume: bool) -> Path:
    """What belongs to a checkpoint: ``run.pt`` has ``run.logs``, and ``lr0.1`` has ``lr0.1.logs``; those who
    ``resume`` one of a time when that was ``lr0.logs`` go on with it."""
    path = Path(path)
    before, now, other = path.with_suffix(kind), path.with_name(f"{path.name}{kind}"), path.with_suffix(".pt")
    older = resume and path.exists() and before.exists() and not (now.exists() or other.exists())
    return before if path == other or older else now


def kept(path: Path) -> list[Path]:
    """The checkpoints that exist of ``path`` and the one before, the latest first."""
    return [file for file in (path, previous_of(path)) if file.exists()]


def read_tensors(path: Path) -> Any:
    """What ``torch.save`` has written, held against the checksums that torch writes and never reads.

    Where the file is torn, changed, or no such file, any exception is raised."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type or entry.compress_size != entry.file_size for entry in entries):
            raise ValueError("it is compressed, as torch writes none")
        if sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise ValueError("it holds more than its bytes")
        if (part := archive.testzip()) is not None:
            raise ValueError(f"its part {part} is damaged")
    return torch.load(path, map_location="cpu", weights_only=True)


def completed(path: Path) -> int:
    """How many rounds or iterations a checkpoint, or the one before, has behind it; 0: none is readable."""
    for file in kept(path):
        with suppress(Exception):  # a torn or foreign file raises anything
            return int(read_tensors(file)["completed"])
    return 0


def seal(text: str, before: str) -> str:
    """The checksum of a text, 8 hex digits; it follows ``before``, another seal or the name of a run."""
    return f"{zlib.crc32(text.encode(), zlib.crc32(before.encode())):08x}"


def sealed(content: Mapping[str, Any], before: str | None) -> dict[str, Any]:
    """Plain data, to be written as JSON, with their seal as :data:`SEAL`; without if ``before`` is None."""
    entry = {} if before is None else {SEAL: seal(json.dumps(content, allow_nan=False), before)}
    return {**content, **entry}


def read_object(text: bytes, before: str | None) -> dict[str, Any]:
    """Inverse of :func:`sealed` and JSON, with the seal still there; unchecked if ``before`` is None."""
    try:
        content = parsed(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    plain = {key: value for key, value in content.items() if key != SEAL}
    if before is not None and sealed(plain, before) != content:
        raise ValueError("it was changed after it was written, or is of another run")
    return content


def read_lines(
    data: bytes, before: str | None, check: Callable[[dict[str, Any]], None] = lambda line: None
) -> list[dict[str, Any]]:
    """The objects of a file to which sealed lines are appended, each seal following the one before it.

    What follows the last newline is empty, or was torn by a crash, and is left out."""
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            lines.append(read_object(text, before))
            check(lines[-1])
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        before = None if before is None else lines[-1][SEAL]
    return lines


def parsed(text: str | bytes) -> Any:
    """JSON that somebody else may have written: nested as far as it can be read, with numbers of 64 bits."""
    try:
        return json.loads(text, parse_int=_whole)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def _whole(digits: str) -> int:
    if len(digits) > 20 or (number := int(digits)).bit_length() > 64:
        raise ValueError("a whole number is beyond 64 bits")
    return number
