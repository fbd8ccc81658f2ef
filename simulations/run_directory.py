"""RunDirectory: the folder that a run leaves behind, complete and readable at every moment."""

from __future__ import annotations

import fcntl
import json
import math
import os
from pathlib import Path
from typing import IO, Any

import safetensors.torch
import torch
import yaml

from fedpart import Federation, RoundReport
from simulations.config import ConfigError, ExperimentConfig
from simulations.config_file import read_yaml

CONFIG, METRICS, SUMMARY, STATE, CHECKPOINT = (
    "config.yaml",
    "metrics.jsonl",
    "summary.json",
    "state.safetensors",
    "checkpoint.pt",
)


class RunDirectory:
    """The files of one run.

    - ``config.yaml``: the resolved configuration;
    - ``metrics.jsonl``: a line per round, see :func:`metrics_line`;
    - ``checkpoint.pt``: everything that decides the next round, replaced atomically;
    - ``summary.json`` and ``state.safetensors``: the outcome; the summary comes last, when all is done.

    While it is open, other processes are kept out. Make one with :meth:`create` or :meth:`reopen`.
    """

    def __init__(self, path: Path, config: ExperimentConfig) -> None:
        self.path, self.config = path, config
        self._lock = _lock(path)
        self._metrics: IO[str] | None = None

    @classmethod
    def create(cls, path: str | Path, config: ExperimentConfig) -> RunDirectory:
        """Start a run in a folder that is new, or has no run in it.

        Raises:
            FileExistsError: a run is there already.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise FileExistsError(f"{path} is a file; choose a folder with --out.")
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path, config)
        try:
            refuse_existing(path)
            run._write_config()
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def reopen(cls, path: str | Path, config: ExperimentConfig) -> RunDirectory:
        """Continue the run in ``path`` with ``config``: the one it has, or the same with more rounds."""
        changed = config != saved_config(path)
        run = cls(Path(path), config)
        if changed:
            run._write_config()
        return run

    @property
    def checkpoint(self) -> Path:
        """File of the checkpoint."""
        return self.path / CHECKPOINT

    def rewind(self, round: int) -> list[dict[str, Any]]:
        """Drop the metrics of rounds after ``round``, for they will be run again; the lines that stay.

        Raises:
            ValueError: lines are missing.
        """
        lines = [line for line in read_metrics(self.path) if line["round"] <= round]
        if [line["round"] for line in lines] != list(range(1, round + 1)):
            raise ValueError(
                f"{self.path / METRICS} does not hold the rounds 1 to {round} that the checkpoint has behind "
                f"it; start the run anew with --out."
            )
        for line in lines:  # a run that ended earlier evaluated its last round, out of turn
            if line["round"] % self.config.evaluate_every and line["round"] != self.config.rounds:
                line.pop("val_accuracy", None)
                line.pop("val_nll", None)
        self.close_metrics()
        _replace(
            self.path / METRICS, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
        )
        return lines

    def record(self, report: RoundReport) -> dict[str, Any]:
        """Append a round to ``metrics.jsonl``; what was written."""
        if self._metrics is None:
            self._metrics = (self.path / METRICS).open("a", encoding="utf-8")
        line = metrics_line(report)
        self._metrics.write(json.dumps(line, allow_nan=False) + "\n")
        self._metrics.flush()
        return line

    def save(self, federation: Federation) -> None:
        """Write the checkpoint; the metrics of its rounds are on the disk before it is."""
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())
        federation.save(self.checkpoint)

    def finish(self, federation: Federation, summary: dict[str, Any]) -> None:
        """Write ``state.safetensors`` (``w/<name>``, ``psi/<name>``, float32), then ``summary.json``."""
        tensors = {f"w/{name}": tensor for name, tensor in federation.tensors().items()}
        tensors |= {f"psi/{name}": tensor for name, tensor in federation.psi_tensors().items()}
        plain = {k: t.detach().to("cpu", torch.float32, copy=True).contiguous() for k, t in tensors.items()}
        _replace(self.path / STATE, safetensors.torch.save(plain))
        _replace(
            self.path / SUMMARY, (json.dumps(_finite(summary), indent=2, allow_nan=False) + "\n").encode()
        )

    def close_metrics(self) -> None:
        """Close ``metrics.jsonl``."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None

    def close(self) -> None:
        """Close the files and let other processes in."""
        self.close_metrics()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write_config(self) -> None:
        text = yaml.safe_dump(self.config.resolved(), sort_keys=False, width=110, default_flow_style=None)
        _replace(self.path / CONFIG, text.encode())


def metrics_line(report: RoundReport) -> dict[str, Any]:
    """A round as a line of ``metrics.jsonl``; the same run gives the same line, ``seconds`` apart.

    ``round, seconds`` (wall-clock, with the evaluation on evaluation rounds), ``train_loss`` (nats),
    ``upload_bytes, download_bytes`` (summed over the cohort),
    ``cohort`` (client numbers), ``skipped`` ([{client, reason}]), ``psi`` ({raw: {name: [..]}, physical:
    {name: value}}); on evaluation rounds ``val_accuracy`` (a fraction; null without classes) and ``val_nll``
    (nats per example).
    """
    line: dict[str, Any] = {
        "round": report.round,
        "seconds": round(report.seconds, 4),
        "train_loss": report.train_loss,
        "upload_bytes": report.upload_bytes,
        "download_bytes": report.download_bytes,
        "cohort": report.cohort,
        "skipped": report.skipped,
        "psi": {"raw": report.psi, "physical": report.physical},
    }
    if report.val_nll is not None:
        line |= {"val_accuracy": report.val_accuracy, "val_nll": report.val_nll}
    finite: dict[str, Any] = _finite(line)
    return finite


def holds_run(path: str | Path) -> bool:
    """Whether the folder has any file of a run in it."""
    return any((Path(path) / name).exists() for name in (CONFIG, METRICS, SUMMARY, STATE, CHECKPOINT))


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


def saved_config(path: str | Path) -> ExperimentConfig:
    """The configuration of the run in a folder.

    Raises:
        ConfigError: no run is there, or its configuration does not fit this version.
    """
    file = Path(path) / CONFIG
    if not file.is_file():
        raise ConfigError(
            f"{path} holds no run (there is no {CONFIG}); start one with fedpart run CONFIG --out {path}."
        )
    return ExperimentConfig.from_dict(read_yaml(file), str(file))


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl``; a last line that was torn by a crash is left out."""
    file = Path(path) / METRICS
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]  # what follows the last newline is empty, or torn


def read_summary(path: str | Path, rounds: int = 0) -> dict[str, Any] | None:
    """A finished run's ``summary.json``; None if the run is not finished, or with fewer than ``rounds``.

    A run that is being extended keeps the summary of its earlier end until it is through.
    """
    file = Path(path) / SUMMARY
    if not file.exists():
        return None
    summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return summary if summary["rounds"] >= rounds else None


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null in their place."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _replace(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the old one or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _lock(path: Path) -> int | None:
    """Keep other processes out of the folder until closed, or until this process dies."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FileExistsError(
            f"Another process is running in {path}; wait for it, or choose another folder."
        ) from None
    except OSError:  # a file system without locks
        os.close(descriptor)
        return None
    return descriptor
