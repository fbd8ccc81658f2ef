"""What starting a deployed ClientApp costs: stock Flower starts a process for every message, we for a run.

Each line is the median over processes, in CPU seconds and megabytes: ``flower_and_torch``, the interpreter
and their imports; ``imports``, those of this project beyond these; ``experiment``, from the run config to the
client's shard. ``data`` says where that comes from: ``built`` every time, as in a simulation; built and
``kept`` in a file, as in the first message of a deployed client; from the ``file``, as in every later one.

    python -m benchmarks.costs.client_start simulations/configs/quickstart.yaml
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from benchmarks.script import child, parser, start, tell, tell_versions

CLIENT = 0
DATA = ("built", "kept", "file")


def run(data: str, config: str, *overrides: str) -> None:
    """In a process of its own: what a ClientApp's does before it computes; a row, by name of the part."""
    import torch  # noqa: F401

    next(iter(entry_points(group="console_scripts", name="flwr-clientapp"))).load()

    marks = [time.process_time()]
    from fedpart.flower.client import _Clients
    from simulations.flower import config as flower_config

    marks.append(time.process_time())
    from simulations.config.load import load_config

    loaded = load_config(config, list(overrides))
    run_config: Mapping[str, str | bool] = flower_config.run_config_of(loaded)
    if data != "built":
        run_config = flower_config.deployed_run_config(loaded, Path("/runs/one"), False)
    marks.append(time.process_time())
    len(_Clients(flower_config.build_experiment(run_config)).shards[CLIENT])
    marks.append(time.process_time())
    tell(
        flower_and_torch=marks[0],
        imports=marks[1] - marks[0],
        experiment=marks[3] - marks[2],
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def measure(config: str, overrides: list[str], data: str, repeats: int) -> dict[str, float]:
    """The medians."""
    found = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as home:
            environment = {"FLWR_HOME": home, "OMP_NUM_THREADS": "1"}
            for _ in range(2 if data == "file" else 1):
                with child(__file__, data, config, *overrides, **environment) as process:
                    said, _ = process.communicate()
            if (data == "built") != (not list(Path(home).rglob("*.safetensors"))):
                raise SystemExit(f"{config}: the shard has {'' if data == 'built' else 'not '}been kept.")
            found.append(json.loads(said.splitlines()[-1]))
    return {name: round(statistics.median(one[name] for one in found), 3) for name in found[0]}


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("configs", nargs="+")
    asked.add_argument("--set", nargs="*", default=[], dest="overrides", help="key=value, for all of them")
    asked.add_argument("--repeats", type=int, default=5)
    given = asked.parse_args()
    for config in given.configs:
        for data in DATA:
            medians = measure(config, given.overrides, data, given.repeats)
            tell(config=Path(config).stem, data=data, **medians)
    tell_versions(busy=round(os.getloadavg()[0], 1))


if __name__ == "__main__":
    start(main, run)
