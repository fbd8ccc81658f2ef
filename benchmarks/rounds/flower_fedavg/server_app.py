"""The ServerApp, with Flower's own FedAvg; its clock is all that is added."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.rounds.flower_fedavg.task import Net, workload


class TimedFedAvg(FedAvg):
    """FedAvg that notes when each round has ended."""

    def __init__(self, ends: list[float], cohort: int, clients: int) -> None:
        super().__init__(
            fraction_train=cohort / clients,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,  # the fraction is of the nodes connected so far, few in the first round
            min_available_nodes=clients,
        )
        self.ends = ends

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        aggregated = super().aggregate_train(server_round, replies)
        self.ends.append(time.perf_counter())
        return aggregated


def make_app(rounds: int, ends: list[float]) -> ServerApp:
    """An app that runs ``rounds`` rounds and notes their ends."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        chosen = workload()
        strategy = TimedFedAvg(ends, chosen.cohort, chosen.clients)
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(Net(chosen.classes).state_dict()),
            train_config=ConfigRecord({"lr": chosen.learning_rate}),
            num_rounds=rounds,
        )

    return app
