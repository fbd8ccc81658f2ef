"""What a round costs, per workload and engine, in one run, against a bare PyTorch loop.

``python -m benchmarks.rounds.bench --workload W1,W2 --rounds 20``

Every engine has a process of its own, with one thread. All are set up and warmed up; then their rounds are
interleaved: one engine runs while the others wait. Flower cannot wait, so it runs all its rounds halfway.
"""

import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.memory import PeakMemory
from benchmarks.rounds.engines import ENGINES, USUAL, EngineProcess, check_any, engine_process, left_out
from benchmarks.rounds.ours import make_protocol
from benchmarks.rounds.rows import Row, Timings, check_file, rows, table, write
from benchmarks.rounds.workloads import WORKLOADS, Workload
from fedpart.registry import nearest
from simulations.cli.guards import guarded
from simulations.config.load import ConfigError

WARM_UP = 2  # rounds; memory is watched in the second, when the optimisers have their state
PASSES = 3  # rounds whose forward and backward passes are timed once more, alone


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
            reason = left_out(program, workload, pfl_python)
            if reason is None:
                python = str(pfl_python) if program.pfl else None
                process = stack.enter_context(engine_process(name, program.module, python))
                contender = _Contender(process, Timings(program.processes), program.stepped)
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
                contender.round(alone=round < PASSES)
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
            with PeakMemory(self.process.pid, 0.01) as memory:
                self.process.ask({"run": WARM_UP - 1})
            self.timings.peak_mb = memory.megabytes
        return reason

    def round(self, *, alone: bool) -> None:
        """One round, and then its forward and backward passes alone."""
        answer = self.process.ask({"run": 1})
        self.timings.seconds += answer["seconds"]
        self.timings.flops += answer.get("flops", [])
        if alone:
            self.timings.passes.append(self.process.ask({"passes": True})["seconds"])

    def block(self, rounds: int) -> None:
        """All rounds of an engine that cannot wait, the warm-up included."""
        with PeakMemory(self.process.pid, 0.25) as memory:  # it is timed meanwhile: do not look too often
            seconds = self.process.ask({"run": WARM_UP + rounds})["seconds"]
        self.timings.peak_mb = memory.megabytes
        self.timings.first_round += seconds[0]
        self.timings.seconds = seconds[WARM_UP:]
        self.timings.passes = [self.process.ask({"passes": True})["seconds"] for _ in range(PASSES)]


@app.command()
def main(
    workload: Annotated[
        str | None,
        typer.Option(help="W1 to W5, P1 and D1, separated by commas (W1); see docs/guides/benchmarks.md."),
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
    """Time a round of each workload on each engine; None: W1, or D1 for engines that run no other."""
    names = list(USUAL) if engines is None else _names(engines, ENGINES, "engine")
    usual = "D1" if all(ENGINES[name].deployed for name in names) else "W1"
    chosen = [WORKLOADS[name] for name in _names(workloads or usual, WORKLOADS, "workload")]
    if pfl_python is not None and not pfl_python.is_file():
        raise ConfigError(f"There is no Python at {pfl_python}, which --pfl-python names.")
    check_any(names, chosen, pfl_python)
    if file is not None:
        check_file(file)
    kept, console = list[Row](), Console()
    for workload in chosen:
        found = measure(workload, names, rounds, pfl_python, console)
        if found:
            console.print(table(found))
            kept += found
            if file is not None:
                write(kept, file)  # now: a later workload may fail
    if not kept:
        raise ConfigError("Nothing was timed: none of these engines is available here.")


if __name__ == "__main__":
    app()
