"""How long a start takes: from a command to its answer, and of a deployed ClientApp until it computes.

python -m benchmarks.costs.starts commands --data ../shared/data
python -m benchmarks.costs.starts clients simulations/configs/quickstart.yaml
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.script import child, tell, tell_versions

FEDPART = [sys.executable, "-c", "from simulations.cli.main import main; main()"]
W1 = ("method=fedavg", "rounds=2", "evaluation=none", "samples=1", "hyperparameters.affine=null")
CLIENT = 0

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)


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


@app.command()
def commands(data: Annotated[str, typer.Option()], repeats: int = 5) -> None:
    """Wall seconds from a command to its answer, the median over processes.

    ``import`` is ``import fedpart`` with all that it offers, ``help`` is ``fedpart --help``. ``local`` and
    ``ray`` are FedAvg rounds of W1 (100 clients with 12 or 13 images, cohorts of 10): from the command to the
    first line of ``metrics.jsonl``. The first repeat of each is not counted: it may compile kernels.
    """
    measured = {
        "import": lambda: seconds_of([sys.executable, "-c", "import fedpart; fedpart.federate"]),
        "help": lambda: seconds_of([*FEDPART, "--help"]),
        **{engine: lambda engine=engine: first_round(engine, data) for engine in ("local", "ray")},
    }
    for name, measure in measured.items():
        walls = [measure() for _ in range(repeats + 1)][1:]
        row = {"median": statistics.median(walls), "least": min(walls), "most": max(walls)}
        tell(what=name, **{key: round(value, 2) for key, value in row.items()})
    tell_versions(busy=round(os.getloadavg()[0], 1))


@app.command(hidden=True)
def client(data: str, config: str, overrides: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """In a process of its own: what a ClientApp's does before it computes; a row, by name of the part."""
    import torch  # noqa: F401

    next(iter(entry_points(group="console_scripts", name="flwr-clientapp"))).load()
    marks = [time.process_time()]
    from fedpart.flower.client import _Clients
    from simulations.flower import config as flower_config

    marks.append(time.process_time())
    from simulations.config.load import load_config

    loaded = load_config(config, overrides or [])
    run_config: Mapping[str, str | bool] = flower_config.run_config_of(loaded)
    if data != "built":
        run_config = flower_config.deployed_run_config(loaded, Path("/runs/one"), False)
    marks.append(time.process_time())
    len(_Clients(flower_config.build_experiment(run_config), None).shards[CLIENT])
    marks.append(time.process_time())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    parts = {"imports": marks[1] - marks[0], "experiment": marks[3] - marks[2]}
    tell(flower_and_torch=marks[0], **parts, peak_mb=peak)


@app.command()
def clients(
    configs: list[str], changes: Annotated[list[str] | None, typer.Option("--set")] = None, repeats: int = 5
) -> None:
    """Of a deployed ClientApp: stock Flower starts a process for every message, we for a run.

    Each line is the median over processes, in CPU seconds and megabytes: ``flower_and_torch``, the
    interpreter and their imports; ``imports``, those of this project beyond these; ``experiment``, from the
    run config to the client's shard. ``data`` says where that comes from: ``built`` every time, as in a
    simulation; built and ``kept`` in a file, as in the first message of a deployed client; from the ``file``,
    as in every later one.
    """
    for config, data in ((config, data) for config in configs for data in ("built", "kept", "file")):
        rows = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as home:
                environment = {"FLWR_HOME": home, "OMP_NUM_THREADS": "1"}
                for _ in range(2 if data == "file" else 1):
                    asked = (data, config, *(changes or ()))
                    with child("benchmarks.costs.starts", "client", *asked, **environment) as process:
                        said, _ = process.communicate()
                if (data == "built") != (not list(Path(home).rglob("*.safetensors"))):
                    raise SystemExit(f"{config}: the shard has {'' if data == 'built' else 'not '}been kept.")
                rows.append(json.loads(said.splitlines()[-1]))
        medians = {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}
        tell(config=Path(config).stem, data=data, **medians)
    tell_versions(busy=round(os.getloadavg()[0], 1))


if __name__ == "__main__":
    app()
