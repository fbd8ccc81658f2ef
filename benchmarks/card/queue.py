"""Runs of the papers' tables in their order of value, as many as fit the minutes that a card is at hand.

``python -m benchmarks.card.queue --minutes 10 --data DIR --pieces DIR`` makes the runs of ``queue.yaml`` that
have no record, several at a time. It ends in time: what is under way saves a checkpoint, and goes on next
time. Where only ``--pieces`` outlasts the machine, give it here and there: it has all that a call needs of
those before. It needs torch, numpy, pydantic, PyYAML, rich and safetensors, and downloads nothing.
"""

import argparse
import io
import os
import signal
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from simulations.config.load import read_table, table_file
from simulations.errors import ConfigError
from simulations.folders.cell import Cell, row_folder
from simulations.folders.contents import read_metrics
from simulations.folders.run_directory import holds_run
from simulations.results.records import HOME, machine, read_records, record_name, write_record
from simulations.sweeps.parallel import in_words, run_in_processes

FILE = Path(__file__).with_suffix(".yaml")
PIECE = 15 << 20  # bytes of a file that is carried
ROOM = 4  # pieces at most
LEAVE = 0.1  # share of the time in which runs save and end, of it at most LONGEST seconds
LONGEST = 45.0


@dataclass(eq=False)
class Run:
    """One run of a table; ``minutes``: what it takes, as far as is known."""

    cell: Cell
    of: dict[str, Any]
    minutes: float
    told: str = ""  # why it cannot be made here

    def left(self) -> float:
        """Seconds that are left of it, about."""
        lines = read_metrics(self.cell.folder) if holds_run(self.cell.folder) else []
        done = lines[-1][self.cell.config.clock.name] if lines else 0
        each = median(line["seconds"] for line in lines[-20:]) if lines else self.minutes * 60 / self.length
        return float((self.length - done) * each)

    @property
    def length(self) -> int:
        return self.cell.config.length


def runs_of(
    file: Path, out: Path, records: Path, settings: Sequence[str], device: str, tables: Sequence[str] = ()
) -> Iterator[Run]:
    """The runs without a record, in the file's order; ``tables``: of these alone, all if none is named."""
    for entry in yaml.safe_load(file.read_text(encoding="utf-8")):
        path = table_file(entry["table"])
        if tables and path.stem not in tables:
            continue
        table, scale, name = read_table(path), entry.get("scale"), path.stem
        known = read_records(name, scale, records)
        for seed in entry.get("seeds", table.seeds):
            for row in entry.get("rows", table.rows):
                if row not in table.rows:
                    raise ConfigError(f"{file}: the table {name} has no row {row!r}.")
                of = {"table": name, "scale": scale, "row": row, "seed": seed}
                if (records / record_name(**of)).exists():
                    continue
                like = [record for record in known.get(row, []) if record["machine"] == machine(device)]
                minutes = median(record["seconds"] / 60 for record in like) if like else entry["minutes"]
                whole = out / "-".join(filter(None, (name, scale)))
                config = table.configured(row, seed, path, whole, scale, [*settings])
                cell = Cell(f"{name}: {row}, seed {seed}", config, row_folder(whole, row, seed))
                yield Run(cell, of, minutes)


def pack(pieces: Path, out: Path, records: Path, runs: Sequence[Run]) -> list[str]:
    """Write records, and folders of unfinished runs as far as there is room; what is said of it."""
    content, said = io.BytesIO(), []
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for file in sorted(records.glob("*.json")):
            archive.add(file, f"records/{file.name}")
        for run in sorted(runs, key=Run.left):  # those that end soonest
            if holds_run(run.cell.folder):
                size = sum(file.stat().st_size for file in carried(run.cell.folder))
                if content.tell() + size > ROOM * PIECE:
                    said.append(f"No room to carry {run.cell.name}, {size / 1e6:.0f} MB; it begins anew.")
                    continue
                for file in carried(run.cell.folder):
                    archive.add(file, f"runs/{file.relative_to(out)}")
    pieces.mkdir(parents=True, exist_ok=True)
    whole = content.getvalue()
    for number in range(0, len(whole), PIECE):
        (pieces / f"queue.{number // PIECE:03}").write_bytes(whole[number : number + PIECE])
    for file in sorted(pieces.glob("queue.*"))[-(-len(whole) // PIECE) :]:
        file.unlink()
    return said


def carried(folder: Path) -> list[Path]:
    """Of an unfinished run what it goes on from."""
    return [file for file in sorted(folder.rglob("*")) if file.is_file() and ".previous" not in file.name]


def unpack(pieces: Path, out: Path, records: Path) -> None:
    """Inverse of :func:`pack`; what is there already stays."""
    content = b"".join(file.read_bytes() for file in sorted(pieces.glob("queue.*")))
    if not content:
        return
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for member in archive.getmembers():
            kind, _, name = member.name.partition("/")
            target = {"records": records, "runs": out}[kind]
            if member.isfile() and not (target / name).exists():
                archive.extract(member.replace(name=name), target, filter="data")


def make(runs: list[Run], records: Path, jobs: int, seconds: float) -> None:
    """Make runs that fit the time, in their order; where none does, the first, which goes on another time."""
    end = time.monotonic() + seconds - min(LONGEST, LEAVE * seconds)
    waiting = list(runs)

    def take(running: Sequence[Cell]) -> Cell | None:
        left = end - time.monotonic()
        if left <= 0:
            return None
        fitting = (run for run in waiting if run.left() <= left)
        run = next(fitting, None if running or not waiting else waiting[0])
        if run is None:
            return None
        waiting.remove(run)
        print(f"begins: {run.cell.name}, about {run.left() / 60:.1f} minutes", flush=True)
        return run.cell

    def ended(cell: Cell, error: Exception | None, trace: str) -> None:
        run = next(run for run in runs if run.cell is cell)
        if error is not None:
            run.told = in_words(error)
            return print(f"failed: {cell.name}: {run.told}", flush=True)
        print(f"record: {write_record(records, cell, run.of).name}", flush=True)
        runs.remove(run)

    def stop(number: int, frame: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)  # once: after their step; the second time at once

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(
        signal.ITIMER_REAL, max(0.01, end - time.monotonic()), 0.7 * min(LONGEST, LEAVE * seconds)
    )
    try:
        run_in_processes(take, jobs, ended, lambda text: print(text, flush=True))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--minutes", type=float, default=0.0, help="after which it has ended; 0: run nothing")
    asked.add_argument("--file", type=Path, default=FILE, help="of the runs, in their order")
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--jobs", type=int, default=4, help="runs at a time")
    asked.add_argument(
        "--table", action="append", default=[], help="runs of this one; may be given several times"
    )
    asked.add_argument("--data", type=Path, help="folder of the data; runs whose data are missing fail")
    asked.add_argument("--out", type=Path, default=Path("runs/queue"), help="folders of the runs")
    asked.add_argument("--records", type=Path, default=HOME, help="folder of what is left of finished runs")
    asked.add_argument("--pieces", type=Path, help="folder of what outlasts this machine")
    options = asked.parse_args()
    began = time.monotonic()
    settings = [f"device={options.device}", *([] if options.data is None else [f"data_dir={options.data}"])]
    if options.pieces is not None:
        unpack(options.pieces, options.out, options.records)
    where = options.file, options.out, options.records
    runs = list(runs_of(*where, settings, options.device, options.table))
    if options.minutes:
        make(runs, options.records, options.jobs, options.minutes * 60 - (time.monotonic() - began))
    if options.pieces is not None:
        for text in pack(options.pieces, options.out, options.records, runs):
            print(text)
    for run in runs:
        print(f"left: {run.cell.name}, about {run.left() / 60:.1f} minutes", run.told)
    print(f"{len(runs)} runs are left, about {sum(run.left() for run in runs) / 3600:.1f} hours.")


if __name__ == "__main__":
    main()
