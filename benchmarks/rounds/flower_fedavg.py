"""Stock Flower: a plain app as in Flower's PyTorch quickstart, for Flower's own simulation on Ray.

Flower's own FedAvg; a clock is all that is added."""

import json
import os
import time
from dataclasses import asdict, replace
from functools import cache

import torch

import fedpart.flower.environment  # noqa: F401

# isort: split
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.rounds.networks import network, plain
from benchmarks.rounds.workloads import Workload

ACTORS = 2
client_app = ClientApp()


def workload() -> Workload:
    """What the server's process has put into the environment, which Ray's workers inherit."""
    return Workload.from_dict(json.loads(os.environ["FEDPART_BENCH_WORKLOAD"]))


def model_of_workload() -> nn.Module:
    """As the bare loop has it, without dropout."""
    return plain(network(replace(workload(), dropout=None)))


@cache
def load_data(partition_id: int) -> DataLoader:
    """The client's data, made once per process."""
    chosen = workload()
    return DataLoader(TensorDataset(*chosen.shard(partition_id)), chosen.batch_size, shuffle=True)


@client_app.train()
def train_round(msg: Message, context: Context) -> Message:
    model = model_of_workload()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader = load_data(context.node_config["partition-id"])
    optimizer = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"])
    model.train()
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    metrics = MetricRecord({"train_loss": total / len(loader), "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


def make_server_app(rounds: int, ends: list[float]) -> ServerApp:
    """An app that runs ``rounds`` rounds and notes their ends."""
    app = ServerApp()

    def note(round: int, arrays: ArrayRecord) -> None:
        if round:
            ends.append(time.perf_counter())

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        chosen = workload()
        FedAvg(
            fraction_train=chosen.cohort / chosen.clients,
            fraction_evaluate=0.0,
            min_train_nodes=chosen.cohort,  # the fraction is of the nodes connected so far, few at first
            min_available_nodes=chosen.clients,
        ).start(
            grid=grid,
            initial_arrays=ArrayRecord(model_of_workload().state_dict()),
            train_config=ConfigRecord({"lr": chosen.learning_rate}),
            num_rounds=rounds,
            evaluate_fn=note,
        )

    return app


def simulate(chosen: Workload, rounds: int) -> list[float]:
    """Seconds of the rounds of a simulation of its own, from its start on."""
    os.environ["FEDPART_BENCH_WORKLOAD"] = json.dumps(asdict(chosen))
    ends: list[float] = []
    start = time.perf_counter()
    run_simulation(
        make_server_app(rounds, ends),
        client_app,
        num_supernodes=chosen.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": ACTORS},
        },
    )
    return [after - before for before, after in zip([start, *ends], ends, strict=False)]
