"""What a round costs, per workload and engine, in one run, against a bare PyTorch loop.

``python -m benchmarks.rounds.bench --workload W1,W2 --rounds 20``

Every engine has a process of its own, with one thread. All are set up and warmed up; then their rounds are
interleaved: one engine runs while the others wait. Flower cannot wait, so it runs all its rounds halfway.
"""

import errno
import json
import os
import platform
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.rounds.engines import (
    ENGINES,
    USUAL,
    EngineProcess,
    engine_process,
    left_out,
    peak_memory,
)
from benchmarks.rounds.ours import make_protocol
from benchmarks.rounds.workloads import WORKLOADS, Workload
from fedpart.registry import nearest
from fedpart.training.files import replace
from simulations.cli.guards import guarded
from simulations.config.load import ConfigError
from simulations.folders.data_files import git_commit
from simulations.results.scores import DASH
from simulations.results.tables import terminal_table


@dataclass
class Timings:
    """What was measured of one engine."""

    first_round: float = 0.0  # seconds from the start of the process to the end of this round
    seconds: list[float] = field(default_factory=list)  # of each round after the warm-up
    flops: list[int] = field(default_factory=list)  # of each of these rounds, where they are known
    peak_mb: float | None = None  # of the processes together, 10^6 bytes
    peer: str | None = None  # versions of another project's packages; None for ours and the bare loop


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
        "MB": ("peak_mb", "{:.0f}"),
        "GFLOP\n/s": ("gflop_per_second", "{:.1f}"),
        "start": ("first_round_seconds", "{:.1f} s"),
    }
    title = f"{found[0]['workload']}: medians of {found[0]['rounds']} rounds, interleaved"
    caption = "start: until the end of the first round"
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


WARM_UP = 2  # rounds; memory is watched in the second, when the optimisers have their state


app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)


def _names(text: str, known: Collection[str], what: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names or [text]:
        if name not in known:
            raise ConfigError(f"There is no {what} {name!r}: {nearest(name, known)}")
    return names


def measure(
    workload: Workload, engines: Sequence[str], rounds: int, pfl_python: Path | None, console: Console
) -> list[Row]:
    """A row for each engine that can run the workload, and a line on the console for each that cannot."""
    protocol = make_protocol(workload)
    arguments = {
        "workload": asdict(workload),
        "cohorts": [
            [(client, protocol.chunk(client)) for client in protocol.cohort(round)]
            for round in range(1, WARM_UP + rounds + 1)
        ],
        "torch": torch.__version__,
    }
    with ExitStack() as stack:
        contenders: dict[str, _Contender] = {}
        for name in dict.fromkeys(engines):
            program = ENGINES[name]
            if (reason := left_out(program, workload, pfl_python)) is None:
                python = str(pfl_python) if program.pfl else None
                process = stack.enter_context(engine_process(name, program.module, python))
                contender = _Contender(process, Timings(), program.stepped)
                reason = contender.start(arguments)
            if reason is None:
                contenders[name] = contender
            else:
                line = f"{workload.name} without {name}: {reason}"
                console.print(line, style="yellow", highlight=False, soft_wrap=True, markup=False)
        stepped = deque(contender for contender in contenders.values() if contender.stepped)
        blocks = [contender for contender in contenders.values() if not contender.stepped]
        for round in range(rounds):
            for contender in blocks if round == rounds // 2 else ():
                contender.block(rounds)
            for contender in stepped:
                contender.round()
            stepped.rotate(-1)  # nobody always follows the same neighbour
    return rows(workload, {name: contender.timings for name, contender in contenders.items()})


@dataclass
class _Contender:
    process: EngineProcess
    timings: Timings
    stepped: bool

    def start(self, arguments: dict[str, Any]) -> str | None:
        """Set up, and warm up; the reason if the engine is not available."""
        answer = self.process.ask(arguments)
        reason, self.timings.peer = answer.get("unavailable"), answer.get("peer")
        self.timings.first_round = time.perf_counter() - self.process.born
        if reason is None and self.stepped:
            self.timings.first_round += self.process.ask({"run": 1})["seconds"][0]
            with peak_memory(self.process.pid, 0.01) as megabytes:
                self.process.ask({"run": WARM_UP - 1})
            self.timings.peak_mb = megabytes()
        return reason

    def round(self) -> None:
        answer = self.process.ask({"run": 1})
        self.timings.seconds += answer["seconds"]
        self.timings.flops += answer.get("flops", [])

    def block(self, rounds: int) -> None:
        """All rounds of an engine that cannot wait, the warm-up included."""
        with peak_memory(self.process.pid, 0.25) as megabytes:  # it is timed meanwhile: do not look too often
            seconds = self.process.ask({"run": WARM_UP + rounds})["seconds"]
        self.timings.peak_mb = megabytes()
        self.timings.first_round += seconds[0]
        self.timings.seconds = seconds[WARM_UP:]


@app.command()
def main(
    workload: Annotated[
        str | None,
        typer.Option(help="W1 to W4 and P1, separated by commas (W1); see docs/guides/benchmarks.md."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Names, separated by commas; the usual ones if not given.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds of each engine.")] = 20,
    json: Annotated[
        Path | None, typer.Option(help="File for the rows, a line of JSON each; it is replaced.")
    ] = None,
    pfl_python: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Python of an environment with apple's pfl.")
    ] = None,
) -> None:
    """Time a round on every engine, against a bare PyTorch loop, stock Flower and pfl."""
    guarded(lambda: run(workload, engine, rounds, json, pfl_python), json)


def run(
    workloads: str | None, engines: str | None, rounds: int, file: Path | None, pfl_python: Path | None
) -> None:
    """Time a round of each workload (None: W1) on each engine (None: the usual)."""
    names = list(USUAL) if engines is None else _names(engines, ENGINES, "engine")
    chosen = [WORKLOADS[name] for name in _names(workloads or "W1", WORKLOADS, "workload")]
    if pfl_python is not None and not pfl_python.is_file():
        raise ConfigError(f"There is no Python at {pfl_python}, which --pfl-python names.")
    if file is not None:
        check_file(file)
    kept, console = list[Row](), Console()
    for workload in chosen:
        if new := measure(workload, names, rounds, pfl_python, console):
            console.print(table(new))
            kept += new
            if file is not None:
                write(kept, file)  # now: a later workload may fail
    if not kept:
        raise ConfigError("Nothing was timed: none of these engines runs these workloads here.")


if __name__ == "__main__":
    app()
