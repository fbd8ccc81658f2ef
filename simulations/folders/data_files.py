"""What a run is made of: files of the user, compared later on, versions of libraries, the commit."""

import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import fedpart
from fedpart.data import Limits, image_listing, leaf_files, listing_digest, table_files
from fedpart.data.reading import check_files
from fedpart.training.files import parsed
from simulations.config.load import Config, ConfigError

LISTED, _EARLIER = "data.json", "images.json"

Listed = dict[str, dict[str, Any]]
"""``{"images": number, "digest": of names and sizes}`` by class, or ``{"bytes": number, "digest": of what the
files hold}`` by part of a table and of LEAF's files."""


def listed_data(config: Config) -> Listed | None:
    """The files that a configuration names, now; None: its data have a name that says what they are."""
    if config.data == "image_folder" and config.data_dir is not None:
        return {
            label: {"images": len(files), "digest": listing_digest(files)}
            for label, files in image_listing(config.data_dir).items()
        }
    parts: dict[str, list[Path]] = {}
    elsewhere = isinstance(config.data_options.get("statistics"), Mapping) and config.data_dir is not None
    if config.data == "table" and not (elsewhere and not Path(config.data_dir).exists()):
        parts = {part: [file] for part, file in table_files(config.data_dir).items()}
    if config.data == "leaf":
        parts = leaf_files(config.data_dir)
    limits = Limits.of(config.data_options.get("limits")) if parts else Limits()
    return {part: _contents(files, limits) for part, files in parts.items()} or None


def _contents(files: Sequence[Path], limits: Limits) -> dict[str, Any]:
    whole = hashlib.sha256()
    check_files(files, limits, f"What is in {files[0].parent}")  # before terabytes of nothing are read
    for file in files:
        with file.open("rb") as opened:
            whole.update(hashlib.file_digest(opened, "sha256").digest())
    return {"bytes": sum(file.stat().st_size for file in files), "digest": whole.hexdigest()[:16]}


def digest_of(listed: Listed | None) -> str:
    """Short hash of them; empty of none."""
    told = json.dumps(listed, sort_keys=True).encode()
    return "" if listed is None else hashlib.sha256(told).hexdigest()[:16]


class KnownData(dict[tuple[str, str | None], Listed | None]):
    """What several configurations are made of, each folder listed once; None where it cannot be listed."""

    def of(self, config: Config) -> Listed | None:
        """As :func:`listed_data`, for runs that are done and need their data no more."""
        key = config.data, config.data_dir
        if key not in self:
            self[key] = None
            with suppress(OSError, ValueError):
                self[key] = listed_data(config)
        return self[key]


def changed_data(folder: Path, now: Listed | None) -> list[str]:
    """How the data differ from those that a run started with, ``owl: 15 images there, 5 here``; or empty."""
    file = next((folder / name for name in (LISTED, _EARLIER) if (folder / name).is_file()), None)
    if now is None or file is None:
        return []
    try:
        before, after = (
            {label: _counted(entry) for label, entry in listed.items()}
            for listed in (parsed(file.read_bytes()), now)
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be read; delete {folder} and run it anew.") from error
    told = []
    for label in sorted(before.keys() | after.keys()):
        unit = (before.get(label) or after[label])[0]
        (_, then, old), (_, counted, new) = (part.get(label, (unit, 0, "")) for part in (before, after))
        if then != counted:
            told.append(f"{label}: {then or 'no'} {unit} there, {counted or 'none'} here")
        elif old != new:
            what = "images of other names or sizes" if unit == "images" else "other contents"
            told.append(f"{label}: {what}")
    return told


def _counted(entry: dict[str, Any]) -> tuple[str, int, str]:
    """What is counted, how many there are, and the digest."""
    unit = "images" if "images" in entry else "bytes"
    return unit, entry[unit], entry["digest"]


def refuse_changed_data(folder: str | Path, now: Listed | None) -> None:
    """Refuse to continue a run on other data than it started with: a ConfigError that names the parts."""
    if other := changed_data(Path(folder), now):
        fault = f"The data are not those that the run in {folder} started with"
        raise ConfigError(f"{fault} ({in_short(other)}); bring them back, or start a new run with --out.")


def in_short(differing: Sequence[str]) -> str:
    """The first three of some differences, and how many more there are."""
    more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
    return f"{', '.join(differing[:3])}{more}"


_ROOT = Path(__file__).resolve().parents[2]


def versions() -> dict[str, str | None]:
    """Versions of what computes the numbers; None for what is not installed."""
    known: dict[str, str | None] = {"python": platform.python_version(), "fedpart": fedpart.__version__}
    for name in ("torch", "numpy", "flwr", "ray"):
        try:
            known[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            known[name] = None
    return known


def git_commit() -> str | None:
    """Commit of the checkout that this code runs from, ``+changes`` where tracked files differ; or None."""
    try:
        if Path(_git("rev-parse", "--show-toplevel")).resolve() != _ROOT:
            return None  # installed inside of somebody else's repository
        return _git("describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+changes")
    except (OSError, subprocess.SubprocessError):  # no git, or no commit yet
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
