"""Federations of real processes in ``bench``: ours, or stock Flower's, on the same experiment.

``python -m benchmarks.rounds.deployed PROCESSES``: ``ours`` or ``flower``
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fedpart.flower.strategy
from benchmarks.rounds.engines import ROOT
from benchmarks.rounds.timed import TimedEngine, serve
from benchmarks.rounds.workloads import Workload
from simulations.config.load import load_config
from simulations.deployment.processes import tool
from simulations.deployment.up import Deployment, watch
from simulations.errors import RunError
from simulations.flower.config import deployed_run_config
from simulations.folders.run_directory import read_metrics
from simulations.running.server_app import app as ours

STOCK = {"superlink": "flower-superlink", "supernode": "flower-supernode", "executor": "flower-superexec"}


class StockDeployment(Deployment):
    """The same federation, with Flower's own SuperLink, SuperNodes and executors."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        start = self.processes.start
        self.processes.start = lambda name, command: start(name, stock(command))  # type: ignore[method-assign]


def stock(command: Sequence[str]) -> list[str]:
    """Flower's command in the place of ours; it knows no operator."""
    if command[1] != "-m":  # it is Flower's already: a process that is started again
        return list(command)
    _, _, module, *options = command
    if "--operator-token-file" in options:
        at = options.index("--operator-token-file")
        del options[at : at + 2]
    return [tool(STOCK[module.rpartition(".")[2]]), *options]


class TimedDeployment(TimedEngine):
    """It cannot be stopped between rounds: a request runs a federation of its own, from start to end."""

    def __init__(self, workload: Workload, processes: str) -> None:
        self.workload, self.stock = workload, processes == "flower"

    def run(self, rounds: int) -> dict[str, Any]:
        clients, cohort = self.workload.clients, self.workload.cohort
        changes = [f"clients={clients}", f"cohort={cohort}", f"rounds={rounds}"]
        config = load_config(ROOT / "simulations" / "configs" / "quickstart.yaml", changes)
        kind = StockDeployment if self.stock else Deployment
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "run")
            with kind(clients, Path(folder, "private"), Path(folder, "logs")) as federation:
                more = {"serverapp": "benchmarks.rounds.deployed:server"} if self.stock else {}
                id = federation.control.start(deployed_run_config(config, out, False), **more)
                ended = watch(federation, id, lambda text: None)
            if not ended.completed:
                raise RunError(f"The run has {ended.outcome}")
            return {"seconds": [line["seconds"] for line in read_metrics(out)]}

    def passes(self) -> None:
        """They are in other processes."""


def __getattr__(name: str) -> Any:
    """``server``: our ServerApp over Flower's own grid, in the process that asks for it."""
    if name != "server":
        raise AttributeError(name)
    strategy: Any = fedpart.flower.strategy
    strategy.guarded = lambda grid, limit: grid
    return ours


def _start(arguments: Mapping[str, Any]) -> TimedDeployment:
    return TimedDeployment(Workload.from_dict(arguments["workload"]), sys.argv[1])


if __name__ == "__main__":
    serve(_start, "flwr")
