"""Rounds of the benchmark's workloads over Flower's messages, one at a time: on Ray, or in this process."""

import json
import logging
from dataclasses import asdict
from types import SimpleNamespace

import torch

from benchmarks.rounds.ours import make_protocol, make_shards
from benchmarks.rounds.workloads import Workload
from fedpart.flower.client import make_client_app
from fedpart.flower.strategy import FedPart


def rounds_over(grid, federation):
    """A round of the Flower strategy over a grid whose clients are :func:`load`'s, each time it is called."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    strategy = FedPart(federation)
    return lambda: strategy.run(grid, federation.round + 1)


def run_config(workload):
    """From which :func:`load`'s clients build the workload."""
    return {"workload": json.dumps(asdict(workload))}


def _build(config):
    torch.set_num_threads(1)
    workload = Workload.from_dict(json.loads(config["workload"]))
    return SimpleNamespace(protocol=make_protocol(workload), shards=make_shards(workload))


def load():
    return make_client_app(_build)
