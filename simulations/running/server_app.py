"""The Flower ServerApp: what ``fedpart run`` does, over the grid that Flower gives."""

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from logging import INFO, getLogger
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpart import Dataset, Federation, RoundReport
from fedpart.checks import require
from fedpart.flower.paced import strategy_of
from fedpart.flower.workarounds import is_deployed
from simulations.building.experiment import Experiment
from simulations.flower.config import among_strangers, read_run_config
from simulations.flower.statistics import gathered
from simulations.folders.run_directory import saved_config
from simulations.results.terminal.progress import Progress
from simulations.running.resume import continued_config
from simulations.running.run import run_experiment

app = ServerApp()
log = getLogger("flwr").log


@dataclass
class GridEngine:
    """Runs rounds over the grid that Flower gives; how many processes are behind it is not known."""

    federation: Federation
    grid: Grid
    evaluate_every: int
    shards: Sequence[Dataset] | None
    told: dict[str, str]
    workers: int | None = None

    def run(self, rounds: int, on_round: Callable[[RoundReport], None] | None = None) -> None:
        """Run ``rounds`` rounds; nobody joins late, for the data are divided among N clients."""
        options: dict[str, Any] = {"late": False, "evaluate_every": self.evaluate_every, "on_round": on_round}
        strategy = strategy_of(self.federation, self.shards, **options)
        strategy.told |= self.told
        strategy.run(self.grid, rounds)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """A run as the run config says: those of :func:`.read_run_config`, the folder ``out``, and ``resume``."""
    config = read_run_config(context.run_config)
    config = among_strangers(config) if is_deployed(grid) else config
    out, resume = str(context.run_config.get("out", "")), bool(context.run_config.get("resume", False))
    require(not resume or out, "resume continues the run in a folder; give its absolute path as out.")
    if out and not Path(out).is_absolute():
        raise ValueError(f"out is {out!r}, but the app runs in a folder of Flower's; give an absolute path.")

    told = {}
    if config.apart:
        known = (saved_config(out) if resume else config).data_options["statistics"]
        config = config.with_statistics(gathered(config, grid) if known == "federated" else known)
        told["statistics"] = json.dumps(config.data_options["statistics"])

    def engine(experiment: Experiment, federation: Federation) -> nullcontext[GridEngine]:
        shards = experiment.shards if experiment.protocol.settings.simulated else None
        return nullcontext(GridEngine(federation, grid, config.evaluate_every, shards, told))

    with nullcontext(out) if out else tempfile.TemporaryDirectory() as folder:
        if resume:
            config = continued_config(folder, config)
        summary: dict[str, Any] = run_experiment(
            config.model_copy(update={"engine": "flower"}),
            folder,
            resume=resume,
            engine=engine,
            progress=Progress(),
        )
    log(INFO, "Summary:")
    for name, value in summary.items():
        log(INFO, "\t%s: %s", name, value)
