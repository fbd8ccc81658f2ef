"""Runs of the papers' tables in their order of value, as far as the minutes go that a card is at hand.

``python -m benchmarks.card.queue --minutes 10 --data DIR`` makes the runs of ``queue.yaml`` that have no
record, several at a time. It ends in time: what is under way saves a checkpoint, and goes on next time. It
needs torch, numpy, pydantic, PyYAML, rich and safetensors, and downloads nothing.
"""

import argparse
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from fedpart.checks import require
from simulations.config.load import table_file
from simulations.errors import ConfigError, RunError
from simulations.results.records import HOME
from simulations.running.recorder import Interrupted
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.table import run_table

FILE = Path(__file__).with_suffix(".yaml")
LEAVE = 0.1  # share of the time in which runs save and end, of it at most LONGEST seconds
LONGEST = 45.0


@contextmanager
def ended_in(seconds: float) -> Iterator[None]:
    """Stop this process before so many seconds are over, as by Ctrl-C; a second time at once."""

    def stop(number: int, frame: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    left = min(LONGEST, LEAVE * seconds)
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, seconds - left), max(0.01, 0.7 * left))
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stopped:
        print(f"The time is over: {stopped}.")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--minutes", type=float, required=True, help="after which it has ended")
    asked.add_argument("--file", type=Path, default=FILE, help="of the runs, in their order")
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--jobs", type=int, default=4, help="runs at a time")
    asked.add_argument("--table", action="append", help="runs of this one; may be given several times")
    asked.add_argument("--data", type=Path, help="folder of the data; runs whose data are missing fail")
    asked.add_argument("--out", type=Path, default=Path("runs/queue"), help="folders of the runs")
    asked.add_argument("--records", type=Path, default=HOME, help="folder of what is left of finished runs")
    options = asked.parse_args()
    with ended_in(60 * options.minutes):
        make(options)


def make(options: argparse.Namespace) -> None:
    """The runs without a record, in the file's order."""
    settings = [f"device={options.device}", *([] if options.data is None else [f"data_dir={options.data}"])]
    for entry in yaml.safe_load(options.file.read_text(encoding="utf-8")):
        other = ", ".join(entry.keys() - {"table", "scale", "rows"})
        require(not other, f"{options.file}: an entry has table, scale and rows, not {other}.", ConfigError)
        path, scale = table_file(entry["table"]), entry.get("scale")
        if options.table is not None and path.stem not in options.table:
            continue
        which = {"scale": scale, "labels": entry.get("rows", ()), "records": options.records}
        out = options.out / "-".join(filter(None, (path.stem, scale)))
        try:
            run_table(path, settings, out, CellRunner(options.jobs), **which)
        except (ConfigError, RunError) as error:  # the others may fare better
            print(error, flush=True)


if __name__ == "__main__":
    main()
