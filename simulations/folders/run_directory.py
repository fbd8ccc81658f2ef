"""RunDirectory: the folder that a run leaves behind, complete and readable at every moment."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from fedpart import RoundReport, TrainingReport
from fedpart.loggers.lines import finite, metrics_line
from fedpart.training.files import kept, previous_of, replace
from fedpart.training.state import ModelState
from simulations.config.load import Config, ExperimentConfig
from simulations.errors import ConfigError, DiskFull
from simulations.folders.data_files import LISTED, Listed
from simulations.folders.resolved import CONFIG as CONFIG
from simulations.folders.resolved import saved_config as saved_config
from simulations.folders.resolved import write_config as write_config

Report = RoundReport | TrainingReport

METRICS, SUMMARY = "metrics.jsonl", "summary.json"
STATE, CHECKPOINT, RESIDUALS = "state.safetensors", "checkpoint.pt", "residuals"
LOOK_SECONDS = 0.5  # from one look whether a folder is free to the next
BESIDE = "beside"  # of a run of another method on the same clients: a folder of the same kind


class RunDirectory:
    """The files of one run.

    - ``config.yaml``: the resolved configuration; ``data.json``: which files of the user's it is made of;
    - ``metrics.jsonl``: a line per round, or per report of centralised training, see :func:`.metrics_line`;
    - ``checkpoint.pt``: everything that decides what comes next, replaced atomically; the one before it stays
      as ``checkpoint.previous.pt``; with error feedback ``residuals/``, what clients keep, belongs to them;
    - ``summary.json`` and ``state.safetensors``: the outcome; the summary comes last, when all is done.

    While it is open, other processes are kept out. Make one with :meth:`create` or :meth:`reopen`.

    Raises (all methods that write):
        DiskFull: what was saved before is whole.
    """

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.config = path, config
        self.checkpoint = path / CHECKPOINT
        make_folder(path, config)
        self._lock = _lock(path)

    @classmethod
    def create(cls, path: str | Path, config: Config, listed: Listed | None = None) -> RunDirectory:
        """Start a run in a folder that is new, or has no run in it; ``listed`` are the user's files.

        Raises:
            FileExistsError: a run is there already.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise FileExistsError(f"{path} is a file; choose a folder with --out.")
        run = cls(path, config)
        try:
            refuse_existing(path)
            if listed is not None:
                text = json.dumps(listed, indent=2, ensure_ascii=False) + "\n"
                _replace(path / LISTED, text.encode())
            write_config(path, config)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def reopen(cls, path: str | Path, config: Config, patience: float = 0.0) -> RunDirectory:
        """Continue the run in ``path`` with ``config``: the one it has, or the same and longer.

        Args:
            patience: seconds to wait for a process that is in it.

        Raises:
            FileExistsError: one still is.
        """
        saved_config(path)  # refuses what is no run
        deadline = time.monotonic() + patience
        while True:
            try:
                return cls(Path(path), config)
            except FileExistsError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(LOOK_SECONDS)

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint, or the one before it."""
        return bool(kept(self.checkpoint))

    def rewind(self, until: int) -> list[dict[str, Any]]:
        """Drop the metrics of what comes after ``until``, for it will be run again; the lines that stay.

        What ``config.yaml`` says is what is run from here on.

        Raises:
            ValueError: lines are missing.
        """
        clock, federated = self.config.clock, isinstance(self.config, ExperimentConfig)
        every = 1 if federated else self.config.evaluate_every
        lines = [line for line in read_metrics(self.path) if line[clock.name] <= until]
        wanted = range(every, until + 1, every)  # those that have a line for certain
        if [line[clock.name] for line in lines if line[clock.name] in wanted] != list(wanted):
            raise ValueError(
                f"{self.path / METRICS} does not hold the {clock.total} 1 to {until} that the checkpoint has "
                f"behind it; start the run anew with --out."
            )
        if federated:  # a shorter run evaluated its last round, out of turn
            for line in lines:
                if line["round"] % self.config.evaluate_every and line["round"] != self.config.rounds:
                    line.pop("val_accuracy", None)
                    line.pop("val_nll", None)
        content = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        with self._room():
            _replace(self.path / METRICS, content.encode())
            if self.config != saved_config(self.path):
                write_config(self.path, self.config)
        return lines

    def record(self, report: Report, **more: Any) -> dict[str, Any]:
        """Append a report to ``metrics.jsonl``, and what else is known at it; what was written."""
        line = metrics_line(report) | finite(more)
        with self._room(), (self.path / METRICS).open("a", encoding="utf-8") as metrics:
            metrics.write(json.dumps(line, allow_nan=False) + "\n")
        return line

    def save(self, state: ModelState) -> None:
        """Write the checkpoint; the metrics of what is behind it are on the disk before it is."""
        with self._room(), (self.path / METRICS).open("a") as metrics:
            os.fsync(metrics.fileno())
            state.save(self.checkpoint)

    def finish(self, state: ModelState, summary: dict[str, Any]) -> None:
        """Write ``state.safetensors`` (``w/<name>``, ``psi/<name>``, float32), then ``summary.json``."""
        tensors = {f"w/{name}": tensor for name, tensor in state.tensors().items()}
        tensors |= {f"psi/{name}": tensor for name, tensor in state.psi_tensors().items()}
        plain = {k: t.detach().to("cpu", torch.float32, copy=True).contiguous() for k, t in tensors.items()}
        text = json.dumps(finite(summary), indent=2, allow_nan=False) + "\n"
        with self._room():
            _replace(self.path / STATE, safetensors.torch.save(plain))
            _replace(self.path / SUMMARY, text.encode())

    def close(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def _room(self) -> Iterator[None]:
        """A full disk becomes one sentence."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DiskFull(
                f"The disk of {self.path} is full ({error.strerror}); what was saved before is whole. Make "
                f"room, and continue the run with --resume {self.path}."
            ) from error


def make_folder(folder: Path, *configs: Config, private: bool = False) -> None:
    """Make a folder, or leave one that is there; of runs with ``privacy`` it is its owner's alone."""
    folder.mkdir(parents=True, exist_ok=True)
    if private or any(getattr(config, "privacy", None) is not None for config in configs):
        try:
            folder.chmod(0o700)
        except PermissionError:
            warnings.warn(
                f"{folder} belongs to another user, so others may read what is left in it; choose another "
                f"folder with --out, or have its owner close it.",
                RuntimeWarning,
                stacklevel=2,
            )


def holds_run(path: str | Path) -> bool:
    """Whether the folder has any file of a run in it."""
    names = (CONFIG, METRICS, SUMMARY, STATE, CHECKPOINT, previous_of(Path(CHECKPOINT)).name)
    return any((Path(path) / name).exists() for name in names)


def refuse_existing(path: str | Path) -> None:
    """Never write into a folder that holds a run.

    Raises:
        FileExistsError: it does.
    """
    if holds_run(path):
        raise FileExistsError(
            f"{path} already holds a run; continue it with --resume {path}, or choose another folder "
            f"with --out."
        )


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl``; a last line that was torn by a crash is left out.

    Raises:
        ConfigError: another line is damaged.
    """
    file = Path(path) / METRICS
    if not file.exists():
        return []
    lines = file.read_bytes().split(b"\n")[:-1]  # what follows the last newline is empty, or torn
    remedy = f"delete {path} and run it again"
    return [_object(line, f"Line {number} of {file}", remedy) for number, line in enumerate(lines, start=1)]


def read_summary(path: str | Path, config: Config | None = None) -> dict[str, Any] | None:
    """A finished run's ``summary.json``; None if the run is not finished, or shorter than ``config`` says.

    A run that is being extended keeps the summary of its earlier end until it is through.

    Raises:
        ConfigError: the file is damaged.
    """
    file = Path(path) / SUMMARY
    if not file.exists():
        return None
    summary = _object(file.read_bytes(), str(file), "delete it and continue the run")
    return summary if config is None or summary.get(config.clock.total, 0) >= config.length else None


def _object(text: bytes, source: str, remedy: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{source} is damaged (it holds no JSON object); {remedy}.")
    return found


def _replace(path: Path, content: bytes) -> None:
    replace(path, lambda file: file.write(content))


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep other processes out of a folder, until the end or until this process dies.

    Raises:
        FileExistsError: another one is in it.
    """
    descriptor = _lock(path)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Keep other processes out of the folder until closed, or until this process dies."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise FileExistsError(
                f"Another process is running in {path}; wait for it, or choose another folder."
            ) from None
        return None  # a file system without locks
    return descriptor
