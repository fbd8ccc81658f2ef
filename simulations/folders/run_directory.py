"""RunDirectory: the folder that a run leaves behind, complete and readable at every moment."""

import errno
import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import safetensors.torch
import torch

from fedpart import Federation, RoundReport, TrainingReport
from fedpart.loggers.lines import finite, metrics_line
from fedpart.registry import reading
from fedpart.training.files import SEAL, kept, previous_of, replace, sealed
from fedpart.training.state import ModelState
from fedpart.updates.stages import Privacy
from simulations.config.load import Config, ExperimentConfig
from simulations.errors import ConfigError, DiskFull, RunError
from simulations.folders.contents import CONFIG as CONFIG
from simulations.folders.contents import METRICS as METRICS
from simulations.folders.contents import STATE as STATE
from simulations.folders.contents import SUMMARY as SUMMARY
from simulations.folders.contents import SWEEPS, keeps_weights, new_name, run_name
from simulations.folders.contents import read_metrics as read_metrics
from simulations.folders.contents import read_summary as read_summary
from simulations.folders.data_files import LISTED, Listed
from simulations.folders.resolved import is_own, lock, write_config
from simulations.folders.resolved import saved_config as saved_config

Report = RoundReport | TrainingReport

CHECKPOINT, RESIDUALS, RELEASES = "checkpoint.pt", "residuals", "releases.jsonl"
LOOK_SECONDS = 0.5  # from one look whether a folder is free to the next
BESIDE = "beside"  # of a run of another method on the same clients: a folder of the same kind


class RunDirectory:
    """The files of one run, as the guide to a run's folder names them; other processes are kept out of it.

    A checkpoint is replaced atomically, and the one before it stays. The summary comes last.
    The summary and each line of the metrics have a ``seal``, which follows from their content and the run's
    name, so that a changed file, or one of another run, is known when it is read. Runs of versions without
    names go on without. A full disk is a :class:`.DiskFull`: what was saved before is whole."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.config = path, config
        self.checkpoint = path / CHECKPOINT
        make_folder(path, config)
        self._lock = lock(path)
        self._name = self._last = run_name(path)
        self.notes: list[str] = []  # sentences about what a resumed run has in another way than before

    @classmethod
    def create(cls, path: str | Path, config: Config, listed: Listed | None = None) -> "RunDirectory":
        """Start a run in a folder that is new, or has no run in it; ``listed`` are the user's files."""
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise FileExistsError(f"{path} is a file; choose a folder with --out.")
        run = cls(path, config)
        try:
            refuse_existing(path)
            if listed is not None:
                text = json.dumps(listed, indent=2, ensure_ascii=False) + "\n"
                _replace(path / LISTED, text.encode())
            run._name = run._last = new_name()
            write_config(path, config, run._name, own=not reading())
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def reopen(cls, path: str | Path, config: Config, patience: float = 0.0) -> "RunDirectory":
        """Continue the run in ``path`` with ``config``: the one it has, or the same and longer."""
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

    def bind(self, state: ModelState) -> None:
        """Say of which run a state is, and where it keeps what is not in its checkpoint."""
        if self._name is not None:
            state.agreement["run"] = self._name
        if isinstance(state, Federation):
            state.keep_in(self.path / RESIDUALS, self.path / RELEASES)

    def rewind(self, state: ModelState) -> list[dict[str, Any]]:
        """Drop the metrics of what comes after a state, for it will be run again; the lines that stay."""
        clock, federated = self.config.clock, isinstance(self.config, ExperimentConfig)
        until, every = state.completed, 1 if federated else self.config.evaluate_every
        lines = read_metrics(self.path, whole=True)
        self._count(lines, state.stage(Privacy) if isinstance(state, Federation) else None)
        lines = [line for line in lines if line[clock.name] <= until]
        lost = not (self.path / METRICS).exists()  # deleted on purpose
        first = lines[0][clock.name] if lines else until + 1 if lost else 1
        wanted = range(-(-first // every) * every, until + 1, every)  # those that have a line for certain
        if [line[clock.name] for line in lines if line[clock.name] in wanted] != list(wanted):
            fault = f"{self.path / METRICS} does not hold the {clock.total} {first} to {until} that the"
            raise ValueError(f"{fault} checkpoint has behind it; {keeps_weights(self.path)}.")
        if first > every:
            self.notes.append(
                f"The metrics begin at {clock.name} {first}; sums and means in the summary leave out what "
                f"was before."
            )
        if federated:  # a shorter run evaluated its last rounds out of turn, or on all data
            before = saved_config(self.path)
            for line in lines if before.rounds < self.config.rounds else ():
                full = before.full_validation_rounds if before.validation_points else 0
                whole = line["round"] > before.rounds - full
                for name in [*line] if line["round"] % self.config.evaluate_every or whole else ():
                    if name.startswith(("val_", "client_accuracy", "client_nll", "evaluation_")):
                        del line[name]
        self._last = self._name
        content = "".join(map(self._line, lines))
        with self._room():
            _replace(self.path / METRICS, content.encode())
            if self.config != (saved := saved_config(self.path)):
                self.notes += _other_bits(saved, self.config)
                write_config(self.path, self.config, self._name, is_own(self.path))
        return lines

    def _count(self, lines: list[dict[str, Any]], privacy: Privacy | None) -> None:
        """Hold the releases that metrics and a summary tell of against those that are counted."""
        if privacy is None or privacy.repeats:
            return
        summary = read_summary(self.path) or {}
        if self._name is None:  # a run from before ledgers
            privacy.count(max([0, summary.get("rounds", 0), *(line["round"] for line in lines[-1:])]))
        for file, told in ((METRICS, lines), (SUMMARY, [summary])):
            if privacy.epsilon() < max([0.0, *(line.get("epsilon") or 0.0 for line in told)]) * (1 - 1e-9):
                raise ValueError(
                    f"{self.path / file} tells of more releases than {self.path / RELEASES} counts; put "
                    f"that file back as it was, for epsilon is not known without it, or start a new run with "
                    f"--out."
                )

    def _line(self, line: Mapping[str, Any]) -> str:
        content = sealed(line, self._last)
        self._last = content.get(SEAL)
        return json.dumps(content, allow_nan=False) + "\n"

    def record(self, report: Report, **more: Any) -> dict[str, Any]:
        """Append a report to ``metrics.jsonl``, and what else is known at it; what was written."""
        line = metrics_line(report) | finite(more)
        with self._room(), (self.path / METRICS).open("a", encoding="utf-8") as metrics:
            metrics.write(self._line(line))
        return line

    def save(self, state: ModelState) -> None:
        """Write the checkpoint; the metrics of what is behind it are on the disk before it is."""
        with self._room(), (self.path / METRICS).open("a") as metrics:
            os.fsync(metrics.fileno())
            state.save(self.checkpoint)

    def keep(self, state: ModelState) -> str:
        """Write ``state.safetensors`` (``w/<name>``, ``psi/<name>``, float32); its hash for the summary."""
        tensors = {f"w/{name}": tensor for name, tensor in state.tensors().items()}
        tensors |= {f"psi/{name}": tensor for name, tensor in state.psi_tensors().items()}
        plain = {k: t.detach().to("cpu", torch.float32, copy=True).contiguous() for k, t in tensors.items()}
        content = safetensors.torch.save(plain)
        with self._room():
            _replace(self.path / STATE, content)
        return hashlib.sha256(content).hexdigest()

    def finish(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``: all is done."""
        text = json.dumps(sealed(finite(summary), self._name), indent=2, allow_nan=False) + "\n"
        with self._room():
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
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                why = f"{self.path} cannot be written ({error.strerror}); what was saved before is whole"
                raise RunError(f"{why}. Copy the folder, and continue the copy.") from error
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DiskFull(
                f"The disk of {self.path} is full ({error.strerror}); what was saved before is whole. Make "
                f"room, and continue the run with --resume {quote(str(self.path))}."
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
    names = (CONFIG, METRICS, SUMMARY, STATE, CHECKPOINT, previous_of(Path(CHECKPOINT)).name, RELEASES)
    return any((Path(path) / name).exists() for name in names)


def refuse_existing(path: str | Path) -> None:
    """Never write into a folder that holds a run."""
    if "\0" in str(path):
        raise ConfigError(f"No folder can be called {str(path)!r}; leave the NUL character out of --out.")
    if holds_run(path):
        remedy = f"continue it with --resume {quote(str(path))}, or choose another folder with --out"
        raise FileExistsError(f"{path} already holds a run; {remedy}.")
    for name, kind in SWEEPS.items():
        if (Path(path) / name).exists():
            raise FileExistsError(f"{path} holds a {kind}; choose another folder with --out.")


def _other_bits(before: Config, now: Config) -> list[str]:
    """What decides no number but its last digits, where it has changed."""
    return [
        f"{key} was {old}, is {new}: sums are rounded in another order, so from here on the bits are not "
        f"those of an undisturbed run."
        for key in ("threads", "device", "execution")
        if (old := getattr(before, key, None)) != (new := getattr(now, key, None))
    ]


def _replace(path: Path, content: bytes) -> None:
    replace(path, lambda file: file.write(content))
