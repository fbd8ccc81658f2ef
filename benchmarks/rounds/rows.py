"""What ``bench`` reports of an engine: a row of numbers, for JSON and for people."""

import errno
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from benchmarks.rounds.workloads import Workload
from fedpart.training.files import replace
from simulations.config.load import ConfigError
from simulations.folders.data_files import git_commit
from simulations.results.scores import DASH
from simulations.results.tables import terminal_table


@dataclass
class Timings:
    """What was measured of one engine."""

    processes: int  # that compute at the same time
    first_round: float = 0.0  # seconds from the start of the process to the end of this round
    seconds: list[float] = field(default_factory=list)  # of each round after the warm-up
    passes: list[float | None] = field(default_factory=list)  # alone, in the first of these; where known
    flops: list[int] = field(default_factory=list)  # of each of these rounds, where they are known
    peak_mb: float | None = None  # of the processes together, 10^6 bytes
    peer: str | None = None  # versions of another project's packages; None for ours and the bare loop

    def overhead_share(self) -> float | None:
        """Median share of the processes' time that is not the model's forward and backward."""
        shares = [
            1 - passes / (self.processes * seconds)
            for passes, seconds in zip(self.passes, self.seconds, strict=False)
            if passes is not None
        ]
        return statistics.median(shares) if shares else None


Row = dict[str, Any]
"""One engine on one workload, to four significant digits; docs/guides/benchmarks.md says what each is."""


def rows(workload: Workload, measured: Mapping[str, Timings]) -> list[Row]:
    """The rows of one workload's engines, in their order; only the bare loop's operations are counted."""
    bare, told, commit, machine = measured.get("bare"), [], git_commit(), _machine()
    for engine, timings in measured.items():
        median = statistics.median(timings.seconds)
        row = {
            "workload": workload.name,
            "engine": engine,
            "seconds_per_round": median,
            "spread": _spread(timings.seconds),
            "ratio_to_bare": median / statistics.median(bare.seconds) if bare else None,
            "clients_per_second": workload.cohort / median,
            "overhead_share": timings.overhead_share(),
            "peak_mb": timings.peak_mb,
            "gflop_per_second": statistics.median(bare.flops) / median / 1e9 if bare else None,
            "first_round_seconds": timings.first_round,
            "rounds": len(timings.seconds),
            "commit": commit,
            "torch": torch.__version__,
            "peer": timings.peer,
            "machine": machine,
        }
        told.append({key: float(f"{v:.4g}") if isinstance(v, float) else v for key, v in row.items()})
    return told


def check_file(file: Path) -> None:
    """Refuse what :func:`write` could not write."""
    with _writing(file):
        if file.exists() and not file.is_file():
            raise OSError(errno.EINVAL, "it is no regular file")
        tempfile.TemporaryFile(dir=file.resolve().parent).close()


def write(found: Sequence[Row], file: Path) -> None:
    """A line of JSON for each row, in place of what was in the file."""
    lines = "".join(json.dumps(row) + "\n" for row in found)
    with _writing(file):
        replace(file.resolve(), lambda opened: opened.write(lines.encode()))


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written ({error.strerror}); choose another with --json."
        ) from error


def table(found: Sequence[Row]) -> Table:
    """The rows of one workload for the terminal, 80 columns wide."""
    columns = {
        "s/round": ("seconds_per_round", "{:.4g}"),
        "spread": ("spread", "{:.0%}"),
        "of\nbare": ("ratio_to_bare", "{:.2f}"),
        "clients\n/s": ("clients_per_second", "{:.1f}"),
        "not\nmodel": ("overhead_share", "{:.0%}"),
        "MB": ("peak_mb", "{:.0f}"),
        "GFLOP\n/s": ("gflop_per_second", "{:.1f}"),
        "start": ("first_round_seconds", "{:.1f} s"),
    }
    title = f"{found[0]['workload']}: medians of {found[0]['rounds']} rounds, interleaved"
    caption = "start: until the end of the first round; not model: time outside forward and backward"
    shown = terminal_table(["engine", *columns], title, caption, padding=1)
    shown.columns[0].justify = "left"
    for row in found:
        cells = [(row[name], form) for name, form in columns.values()]
        texts = [DASH if value is None else form.format(value) for value, form in cells]
        shown.add_row(*map(Text, [row["engine"], *texts]))
    return shown


def _spread(seconds: Sequence[float]) -> float:
    if len(seconds) < 2:
        return 0.0
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / median


def _machine() -> str:
    name = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{name}, {os.cpu_count()} cores"
