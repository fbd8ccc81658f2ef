"""Curves: what a finished run recorded, read back from its folder as arrays over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpart.training.files import completed
from simulations.config.load import Config, ConfigError, TrainingConfig
from simulations.folders.contents import CONFIG, METRICS, keeps_weights, read_metrics, read_summary
from simulations.folders.run_directory import CHECKPOINT, STATE, saved_config
from simulations.results.psi_parts import PsiParts, whole

Array = NDArray[np.float64]
Values = TypeVar("Values", list[float], Array)
LAST = 10  # evaluations whose mean is reported as the validation score (App. J.2)
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)  # of accuracy, to which the time is told


@dataclass(frozen=True, eq=False)
class Run:
    """One run as its folder tells it."""

    folder: Path
    metrics: list[dict[str, Any]]  # ascending lines of metrics.jsonl: of rounds, or of centralised reports
    summary: dict[str, Any]  # summary.json; empty if the run is not finished

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        folder = Path(folder)
        if not (folder / CONFIG).is_file():
            raise FileNotFoundError(f"{folder} holds no run (there is no {CONFIG}); name a run's folder.")
        summary = read_summary(folder) or {}
        saved = completed(folder / CHECKPOINT)  # before the metrics, for the run may be under way
        run = cls(folder, read_metrics(folder), summary)
        if summary and not (run.metrics and run.metrics[-1][run.clock] >= summary[f"{run.clock}s"]):
            raise ConfigError(
                f"{folder / METRICS} ends before the finished run does; put it back as it was, or do without "
                f"a report (the weights are in {STATE}, which fedpart.load and fedpart export read)."
            )
        last = run.metrics[-1][run.clock] if run.metrics else 0
        every = run.config.evaluate_every if isinstance(run.config, TrainingConfig) else 1
        if last <= saved - every and (folder / METRICS).exists():
            raise ConfigError(f"{folder / METRICS} ends before its checkpoint does; {keeps_weights(folder)}.")
        return run

    @cached_property
    def config(self) -> Config:
        return saved_config(self.folder)

    @property
    def finished(self) -> bool:
        """Whether it is as long as its configuration says; one that is being extended is not."""
        return self.summary.get(self.config.clock.total, 0) >= self.config.length

    @property
    def name(self) -> str:
        return f"{self.config.method}, seed {self.config.seed}"

    @property
    def clock(self) -> str:
        """What the run counts: ``round`` or ``iteration``."""
        return "iteration" if self.metrics and "iteration" in self.metrics[0] else "round"

    def counts(self) -> Array:
        return np.array([line[self.clock] for line in self.metrics], dtype=float)

    def curve(self, key: str) -> tuple[Array, Array]:
        """Clock ``[n]`` and values ``[n]`` of a metric, where it was recorded."""
        points = [(line[self.clock], line[key]) for line in self.metrics if line.get(key) is not None]
        counts, values = zip(*points, strict=True) if points else ((), ())
        return np.array(counts, dtype=float), np.array(values, dtype=float)

    def along(self, against: str) -> Array:
        """Each line on an axis: ``rounds``, ``time`` (simulated), or a sum so far: bytes, or ``seconds``."""
        if against == "rounds":
            return self.counts()
        if against == "time":
            return np.array([line["simulated_seconds"] for line in self.metrics], dtype=float)
        each = {"seconds": ("seconds",), "bytes": ("upload_bytes", "download_bytes")}
        keys = each.get(against, (f"{against}_bytes",))
        return np.cumsum([float(sum(line[key] for key in keys)) for line in self.metrics])

    def total(self, key: str) -> float:
        """Sum of a metric over all rounds, e.g. ``upload_bytes``."""
        return float(sum(line[key] for line in self.metrics))

    def alike(self) -> int:
        """How many lines of the metrics, from the first on, were evaluated on the same validation data."""
        limited = self.config.validation_points
        whole = getattr(self.config, "full_validation_rounds", 0) if limited else 0
        return max(len(self.metrics) - whole, 0) or len(self.metrics)

    def last10(self, key: str, most: float | None = None, of: str = "upload") -> float | None:
        """Mean of a metric's last evaluations, or of those with no more than so many bytes ``of`` an axis."""
        counts, values = self.curve(key)
        if most is not None:
            lines = self.alike()
            values = values[np.isin(counts, self.counts()[:lines][self.along(of)[:lines] <= most])]
        return float(moving_average(values)[-1]) if len(values) else None

    def physical(self) -> dict[str, Array]:
        """psi in physical units, by name, ``[rounds]`` each; ends of a range that have swapped, in order."""
        lines = [line["psi"]["physical"] for line in self.metrics]
        names = lines[-1] if lines else ()
        values = {name: np.array([line[name] for line in lines], dtype=float) for name in names}
        parts = PsiParts.of(values)
        for low, high in (*parts.angles, *parts.ranges):
            values[low], values[high] = np.sort([values[low], values[high]], axis=0)
        return values

    def learned(self) -> dict[str, Array]:
        """The part of :meth:`physical` that the run has moved, by its summary, or over its lines."""
        values = self.physical()
        moved = self.summary.get("psi_learned", [name for name in values if np.ptp(values[name]) > 0])
        return {name: values[name] for name in whole(moved, values)}

    def courses(self) -> dict[str, Array]:
        """The same to be drawn: there is none of a single line."""
        return self.learned() if len(self.metrics) > 1 else {}


def seconds_to_accuracy(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Simulated seconds until an evaluation first found an accuracy of :data:`LEVELS`, those reached."""
    reached: dict[str, float] = {}
    for line in lines:
        for level in LEVELS:
            if (line.get("val_accuracy") or 0.0) >= level:
                reached.setdefault(f"{level:g}", line["simulated_seconds"])
    return reached


def recent(values: Values, most: int = LAST) -> Values:
    """The last ``most`` of them (App. J.3), but no more than half: else a start would count as an end."""
    return values[max(len(values) // 2, len(values) - most) :]


def moving_average(values: Array, most: int = LAST) -> Array:
    """Means of each value and of :func:`recent` ones before it: ``[n]`` of ``[n]``."""
    return np.array([recent(values[:end], most).mean() for end in range(1, len(values) + 1)])


@dataclass(frozen=True, eq=False)
class Band:
    """Mean and standard error over seeds along x: ``[n]`` each."""

    x: Array
    mean: Array
    error: Array | None  # None with one seed

    def scaled(self, x: float, y: float) -> Band:
        """In other units of both axes."""
        return Band(x * self.x, y * self.mean, None if self.error is None else y * self.error)

    @property
    def edges(self) -> list[Array]:
        """A standard error below and above the mean; none with one seed."""
        return [] if self.error is None else [self.mean - self.error, self.mean + self.error]


def band(x: Sequence[Array], y: Sequence[Array]) -> Band:
    """Average curves ``[n]``, one per seed; the standard error is std(ddof=1) / sqrt(seeds)."""
    values = np.stack(y)
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None
    return Band(np.stack(x).mean(axis=0), values.mean(axis=0), error)


def with_curve(runs: Mapping[str, Sequence[Run]], key: str) -> dict[str, list[Run]]:
    """The runs by method that have recorded a metric."""
    return {method: [run for run in group if len(run.curve(key)[0])] for method, group in runs.items()}


def metric(runs: Mapping[str, Sequence[Run]], part: str = "val") -> str:
    """What measures runs and clients: ``val_accuracy``, or ``val_nll`` without one; or of a ``part``."""
    accuracy, nll = (
        any(any(with_curve(runs, f"{whose}_{key}").values()) for whose in ("val", "client"))
        for key in ("accuracy", "nll")
    )
    return f"{part}_{'nll' if nll and not accuracy else 'accuracy'}"


def metric_band(runs: Sequence[Run], key: str, against: str, most: int = LAST) -> Band:
    """The moving average of ``most`` values of a metric over seeds, at the rounds that all runs evaluated."""
    common = sorted(set.intersection(*(set(run.curve(key)[0].tolist()) for run in runs)))
    curves = [run.curve(key) for run in runs]
    ys = [moving_average(values, most)[np.isin(rounds, common)] for rounds, values in curves]
    return band([run.along(against)[np.isin(run.counts(), common)] for run in runs], ys)


def psi_bands(runs: Sequence[Run]) -> dict[str, Band]:
    """Psi over seeds against the clock, by name; a number counts as learned if any seed changed it."""
    physical = [run.physical() for run in runs]
    learned = {name for run in runs for name in run.courses()}
    length = min(len(run.metrics) for run in runs)
    counts = [run.counts()[:length] for run in runs]
    names = [name for name in physical[0] if name in learned]
    return {name: band(counts, [values[name][:length] for values in physical]) for name in names}
