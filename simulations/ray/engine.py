"""RayEngine: rounds of a federation by the Flower strategy and the Flower client app, on Ray actors."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial

from flwr.clientapp import ClientApp

from fedpart import Federation, RoundReport
from fedpart.flower.nodes import NodesError
from fedpart.flower.strategy import FedPart
from simulations.building.experiment import Experiment
from simulations.errors import RunError
from simulations.flower.config import run_config_of
from simulations.ray.grid import RayGrid

PATIENCE = 4.0  # seconds that a round in progress has when the run is to stop


class RayEngine:
    """Runs rounds on Ray; use it as a context manager.

    Args:
        experiment: with ``config``, from which every actor builds the experiment anew.
        federation: the state; continued from where it is.
        workers: actors; None: one per CPU core.
        address: of a Ray cluster, on whose machines fedpart must be installed; None: this machine.

    Raises (on entering it):
        RunError: there is no cluster at that address.
    """

    def __init__(
        self,
        experiment: Experiment,
        federation: Federation,
        *,
        workers: int | None = None,
        address: str | None = None,
    ) -> None:
        self.federation, self._address, self._until = federation, address, math.inf
        self._every, self._shards = experiment.config.evaluate_every, experiment.shards
        settings = federation.protocol.settings
        where = {"workers": workers, "address": address, "gpu": settings.device.startswith("cuda")}
        where["until"] = lambda: self._until
        self._start = partial(RayGrid, _load, settings.clients, **where)
        self._run_config = run_config_of(experiment.config)

    def __enter__(self) -> RayEngine:
        logging.getLogger("flwr").setLevel(logging.WARNING)  # its lines would tear the progress bar
        if (residuals := self.federation.residuals) is not None:
            self._run_config["residuals"] = str(residuals.folder.absolute())
        try:
            self.grid = self._start(self._run_config)
            self.workers = self.grid.workers
        except OSError as error:
            if self._address is None:
                raise
            raise RunError(
                f"There is no Ray cluster to join at {self._address!r} ({error}); start one with `ray start "
                f"--head`, or leave ray_address out."
            ) from error
        return self

    def __exit__(self, *exception: object) -> None:
        self.grid.close()

    def stop(self) -> None:
        """Give up the round in progress, unless it is done in :data:`PATIENCE` seconds."""
        self._until = time.monotonic() + PATIENCE

    def run(self, rounds: int, on_round: Callable[[RoundReport], None] | None = None) -> None:
        """Run until ``rounds`` rounds are complete.

        Raises:
            ClientError: a client failed, and the settings say ``fail``.
            RunError: the actors are not the configuration's clients, or a round has been given up.
        """
        try:
            made = {"evaluate_every": self._every, "shards": self._shards}
            FedPart(self.federation, on_round=on_round, **made).run(self.grid, rounds)
        except NodesError as error:
            raise RunError(str(error)) from error


def _load() -> ClientApp:
    """The client app; called in every actor."""
    from simulations.flower.client import app

    return app
