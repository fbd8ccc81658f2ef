"""A tiny experiment for the Flower tests, built from a run config in any process."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid
from inprocess_grid import InProcessGrid
from problems import after, assert_same
from torch import nn
from torch.nn import functional as F

from fedpart import (
    AffineAugmentation,
    ConcreteDropout,
    Dataset,
    DeviceSettings,
    Federation,
    FederationSettings,
    LocalSettings,
    Protocol,
    RoundReport,
    Task,
)
from fedpart.flower.client import make_client_app
from fedpart.flower.strategy import FedPart
from fedpart.nn.likelihoods import Classification, Gaussian, Ordinal

CLIENTS = 12
DEFAULTS: dict[str, Any] = {
    "method": "partitioned",
    "seed": 0,
    "on_client_error": "fail",
    "node_timeout": 0.0,
    "width": 8,
}
SAFEGUARDS = (
    *("weighting", "max_examples", "min_replies", "round_timeout", "node_timeout"),
    *("clip", "defence", "privacy", "upload", "error_feedback", "download"),
    *("evaluation", "evaluation_share", "evaluation_clients"),
)

PACES: dict[str, Any] = {
    "late": {"overselect": 1.5, "deadline": 2.0},
    "buffered": {"buffer": 2, "staleness": "sqrt"},
}
SLOW = DeviceSettings(speed={"lognormal": (20.0, 1.0)}, upload=1e4, download=1e4, available=0.9)

SAME = (
    *("simulated_seconds", "staleness", "factors", "candidates"),
    *("round", "train_loss", "lml", "cohort", "psi", "physical", "skipped", "examples"),
    *("client_accuracy", "client_accuracy_worst_decile", "client_accuracy_chunks"),
    *("client_nll", "client_nll_worst_decile", "client_nll_chunks"),
    *("client_accuracy_caps", "client_nll_caps", "client_accuracy_each", "client_nll_each"),
)


class Graded(Classification):
    """A likelihood of one's own, for what is known by name only."""


class WithLoss(nn.Module):
    """A network that computes its loss."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.module(x)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels)}


LIKELIHOODS: dict[str, Any] = {
    "classification": lambda: "classification",
    "own": lambda: Graded(temperature=1.0),
    "from_model": lambda: "from_model",
    "ordinal": lambda: Ordinal(3),
    "multilabel": lambda: "multilabel",
    "gaussian": lambda: Gaussian(learned=True),
}


@dataclass
class Experiment:
    protocol: Protocol
    shards: Any


class Shards:
    """Data that is drawn on demand; hooks of a test make clients fail or die."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def __len__(self) -> int:
        return CLIENTS

    def __getitem__(self, client: int) -> Dataset:
        if client == self.config.get("failing"):
            raise KeyError("the disk of this client is gone")
        if client == self.config.get("dying"):
            marker = Path(str(self.config["marker"]))
            if not marker.exists() or self.config.get("always"):
                marker.touch()
                if self.config.get("deaf"):  # to what would wake it up
                    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
                    time.sleep(3600)
                os.kill(os.getpid(), signal.SIGKILL)
        if client == self.config.get("hanging"):
            time.sleep(3600)
        generator = torch.Generator().manual_seed(client)
        n = 6 + client % 5
        inputs = torch.rand(n, 1, 8, 8, generator=generator)
        targets = torch.randint(0, 3, (n,), generator=generator)
        given = {"multilabel": F.one_hot(targets, 3), "gaussian": targets[:, None].float()}
        n = 1 if client == self.config.get("single") else n
        return Dataset(inputs[:n], given.get(str(self.config.get("likelihood")), targets)[:n])


SIZES = [{"share": share, "model_options": {"share": share}} for share in (0.5, 0.25)]
SIZES.append({"share": 0.25, "model_options": {}})
DRAWN = {False: {}, True: {"draw_sizes": True}}
ARMS = {
    "learning_rate": [0.05, 0.1, 0.3],
    "momentum": [0.0, 0.9],
    "weight_decay": [0.0, 0.01],
    "epochs": [1, 2],
    "batch_size": [2, 4],
    "dropout": [0.1, 0.3],
}


HALVING = {"server": [1, 10], "local": [1, 3], "rounds": 2}


def options_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of the method."""
    if config["method"] == "fedex":
        return {"arms": ARMS}
    return {**DRAWN[bool(config.get("drawn"))], **({"halving": HALVING} if config.get("halving") else {})}


def build(config: Mapping[str, Any]) -> Experiment:
    torch.set_num_threads(1)
    config = {**DEFAULTS, **config}
    width = int(config["width"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), ConcreteDropout(0.2), nn.Flatten()]
        likelihood = str(config.get("likelihood", "classification"))
        outputs = 1 if likelihood in ("ordinal", "gaussian") else 3

        def sized(share: float = 1.0) -> nn.Sequential:
            units = int(share * width)
            return nn.Sequential(*layers, nn.Linear(144, units), nn.ReLU(), nn.Linear(units, outputs))

        module: nn.Module = sized()
        if likelihood == "from_model":
            module = WithLoss(module)
        given = LIKELIHOODS[likelihood]()
        task = Task(module, transforms=[AffineAugmentation()], likelihood=given, samples=2, sizes=sized)
    settings = FederationSettings(
        clients=CLIENTS,
        cohort=5,
        method=config["method"],
        method_options=options_of(config),
        seed=config["seed"],
        local=LocalSettings(learning_rate=0.1, batch_size=4),
        on_client_error=config["on_client_error"],
        upload_options={"share": config["share"]} if "share" in config else {},
        defence_options={"bucket": config["bucket"]} if "bucket" in config else {},
        caps={1: 0.8, 3: 0.2} if config.get("capped") else None,
        architectures=SIZES if config.get("sizes") else None,
        sharing={"kind": config["sharing"]} if "sharing" in config else None,
        **{name: config[name] for name in SAFEGUARDS if name in config},
        **({"devices": SLOW, **PACES[config["pace"]]} if "pace" in config else {}),
    )
    return Experiment(Protocol(task, settings), Shards(config))


app = make_client_app(build, lambda config: Path(str(config.get("residuals"))))


def load() -> Any:
    return app


Run = tuple[Federation, list[RoundReport]]


def local(rounds: int, workers: int = 1, execution: str = "loop", every: int = 10, **config: Any) -> Run:
    """The same run on the local engine."""
    experiment = build(config)
    federation, shards = Federation(experiment.protocol), experiment.shards
    return after(rounds, federation, shards, workers, execution, evaluate_every=every)


@functools.cache
def expected(rounds: int) -> Run:
    """The same, of the plain configuration, once for all who only compare with it."""
    return local(rounds)


def deployed(
    rounds: int,
    config: Mapping[str, Any] | None = None,
    grid: Grid | None = None,
    federation: Federation | None = None,
    every: int = 10,
    **options: Any,
) -> Run:
    """The same over Flower, on a grid that calls the app in this process; ``options`` are the grid's."""
    federation, reports = federation or Federation(build(config or {}).protocol), []
    grid = grid or InProcessGrid(app, CLIENTS, config, **options)
    FedPart(federation, on_round=reports.append, evaluate_every=every).run(grid, rounds)
    return federation, reports


def assert_equal_runs(one: Run, other: Run) -> None:
    """Bit-identical states, equal reports but for time and bytes."""
    assert one[0].round == other[0].round
    assert_same(one[0], other[0])
    for mine, theirs in zip(one[1], other[1], strict=True):
        for name in SAME:
            assert getattr(mine, name) == getattr(theirs, name), name
