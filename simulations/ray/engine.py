"""RayEngine: rounds of a federation by the Flower strategy and the Flower client app, on Ray actors."""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from flwr.clientapp import ClientApp

from fedpart import Federation, RoundReport
from fedpart.checks import require
from fedpart.flower.nodes import NodesError
from fedpart.flower.paced import strategy_of
from simulations.building.experiment import Experiment
from simulations.config.load import ExperimentConfig
from simulations.errors import ConfigError, RunError
from simulations.flower.config import run_config_of
from simulations.ray.cluster import take_signals_back
from simulations.ray.grid import RayGrid

# Ray's own variable: of a running cluster, host:port, or auto for one that this machine is in.
ADDRESS = "RAY_ADDRESS"
PATIENCE = 4.0  # seconds that a round in progress has when the run is to stop


class RayEngine:
    """Runs rounds on Ray; use it as a context manager."""

    def __init__(self, experiment: Experiment, federation: Federation, grid: Future[RayGrid]) -> None:
        self.federation, self._starting, self._until = federation, grid, math.inf
        self.grid: RayGrid | None = None
        self._config, self._shards = experiment.config, experiment.shards

    def __enter__(self) -> "RayEngine":
        logging.getLogger("flwr").setLevel(logging.WARNING)  # its lines would tear the progress bar
        try:
            self.grid = self._starting.result()
            take_signals_back()
            self.grid.until = self._until  # somebody may have stopped it before it was there
            self.workers = self.grid.workers
        except OSError as error:
            if (address := os.environ.get(ADDRESS)) is None:
                raise
            remedy = f"start one with `ray start --head`, or unset {ADDRESS}"
            raise RunError(f"There is no Ray cluster to join at {address!r} ({error}); {remedy}.") from error
        return self

    def __exit__(self, *exception: object) -> None:
        self.grid.close()

    def stop(self) -> None:
        """Give up the round in progress, unless it is done in :data:`PATIENCE` seconds."""
        self._until = time.monotonic() + PATIENCE
        if self.grid is not None:
            self.grid.until = self._until

    def run(self, rounds: int, on_round: Callable[[RoundReport], None] | None = None) -> None:
        try:
            every = self._config.evaluate_every
            made = strategy_of(self.federation, self._shards, on_round=on_round, evaluate_every=every)
            made.run(self.grid, rounds)
        except NodesError as error:
            raise RunError(str(error)) from error


def refuse_kept(config: ExperimentConfig) -> None:
    """Refuse a run whose clients keep something, where they may be computed on several hosts."""
    what = f"With error_feedback, or method: {config.method}, clients keep files"
    where = f"in the run's folder, where actors of a Ray cluster do not find them; unset {ADDRESS}, or use"
    require(not config.settings().keeps, f"{what} {where} another method.", ConfigError)


@contextmanager
def starting(config: ExperimentConfig, residuals: Path) -> Iterator[Callable[..., RayEngine]]:
    """Start Ray and its actors meanwhile; gives what makes their engine of experiment and federation."""
    address = os.environ.get(ADDRESS)
    if address:
        refuse_kept(config)
    run_config = {**run_config_of(config), "residuals": str(residuals.absolute())}
    where = {"workers": config.workers, "address": address or None}
    gpu = config.device.startswith("cuda")
    with ThreadPoolExecutor(1) as thread:  # Linux ends with it the processes that it starts: it outlives them
        grid = thread.submit(RayGrid, _load, config.clients, run_config, gpu=gpu, **where)
        try:
            yield lambda experiment, federation: RayEngine(experiment, federation, grid)
        finally:
            with suppress(Exception):  # it has been told, if anybody has entered the engine
                grid.result().close()


def _load() -> ClientApp:
    """The client app; called in every actor."""
    from simulations.flower.client import app

    return app
