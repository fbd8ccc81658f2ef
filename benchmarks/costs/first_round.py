"""How long a user waits: wall seconds from a command to its answer, the median over processes.

``import`` is ``import fedpart`` with all that it offers, ``help`` is ``fedpart --help``. ``local`` and
``ray`` are FedAvg rounds of W1 (100 clients with 12 or 13 images, cohorts of 10): from the command to the
first line of ``metrics.jsonl``. The first repeat of each is not counted: it may compile kernels.

    python -m benchmarks.costs.first_round --data ../shared/data
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.script import parser, tell, tell_versions

FEDPART = [sys.executable, "-c", "from simulations.cli.main import main; main()"]
W1 = ("method=fedavg", "rounds=2", "evaluation=none", "samples=1", "hyperparameters.affine=null")
ENGINES = ("local", "ray")


def seconds_of(command: list[str], until: Path | None = None) -> float:
    """Wall seconds of a command that must succeed: all of it, or ``until`` a file has a line."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while until is not None and process.poll() is None and not (until.exists() and until.stat().st_size):
            time.sleep(0.01)
        wall = time.perf_counter() - began if until is not None else None
        status = process.wait()
    if status or (until is not None and not until.exists()):
        raise SystemExit(f"{' '.join(command)} ended with status {status}.")
    return time.perf_counter() - began if wall is None else wall


def first_round(engine: str, data: str) -> float:
    """Until the first round of W1 has been written."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        settings = (*W1, f"data_dir={data}", f"engine={engine}")
        command = [*FEDPART, "run", "mnist_1k", "--out", str(out), "--set", *settings]
        return seconds_of(command, out / "metrics.jsonl")


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--data", required=True, help="folder with MNIST, in torchvision's layout")
    asked.add_argument("--repeats", type=int, default=5)
    arguments = asked.parse_args()
    measured = {
        "import": lambda: seconds_of([sys.executable, "-c", "import fedpart; fedpart.federate"]),
        "help": lambda: seconds_of([*FEDPART, "--help"]),
        **{engine: lambda engine=engine: first_round(engine, arguments.data) for engine in ENGINES},
    }
    for name, measure in measured.items():
        walls = [measure() for _ in range(arguments.repeats + 1)][1:]
        tell(
            what=name,
            median=round(statistics.median(walls), 2),
            least=round(min(walls), 2),
            most=round(max(walls), 2),
        )
    tell_versions(busy=round(os.getloadavg()[0], 1))


if __name__ == "__main__":
    main()
