"""All networks that nobody changed as one, for the engines that take seconds to start: a configuration."""

import re

import torch
from safetensors.torch import load_file
from torch import nn

from fedpart.data import Dataset, Splits
from simulations.folders.run_directory import STATE, read_metrics
from stock import STOCK

CONFIG = {
    "data": "stock.bundle:load",
    "model": "stock.bundle:Bundle",
    "likelihood": "from_model",
    "hyperparameters": {"affine": None, "dropout": None, "learn_dropout": True},
    "clients": 2,
    "cohort": 2,
    "chunks": [0.5, 0.5],
    "samples": 1,
    "split": {"recipe": "iid"},
    "local": {"learning_rate": 0.1, "batch_size": 2},
    "rounds": 2,
    "evaluate_every": 2,
    "evaluation": "clients",
}
ONE_ROUND = {"rounds": 1, "evaluate_every": 1, "clip": "adaptive"}  # which deployed runs have by themselves


class Bundle(nn.Module):
    """Returns the sum of their losses; each takes its own part of the inputs.

    Compiled blocks are there as they are before they are compiled, which is what a task makes of them: a
    client's process need not load the compiler.
    """

    def __init__(self, num_classes, input_shape):
        super().__init__()
        nets = {re.sub(r"\W+", "_", name): one.network(plain=True) for name, one in STOCK.items()}
        self.nets = nn.ModuleDict(nets)

    def forward(self, inputs, targets=None):
        if targets is None:
            return self.nets["vit"](inputs["vit"])
        psi = torch.zeros(1)  # of likelihoods, which here are not learned
        parts = zip(STOCK.items(), self.nets.values(), strict=True)
        losses = [one.value(net, psi, inputs[name], targets[name]) for (name, one), net in parts]
        return {"loss": torch.stack(losses).sum()}


def load(data_dir=None):
    def part(examples, seed):
        shards = {name: one.shard(examples, seed) for name, one in STOCK.items()}
        inputs, targets = ({name: shard[side] for name, shard in shards.items()} for side in (0, 1))
        return Dataset({"inputs": inputs}, {"targets": targets})

    return Splits(part(6, 0), part(2, 1), part(2, 2), num_classes=3)


def assert_same(folder, local):
    """Two runs have the same weights and hyperparameters, to the bit, and the same scores of all clients."""
    one, two = load_file(folder / STATE), load_file(local / STATE)
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []
    lines = [read_metrics(one) for one in (folder, local)]
    assert all(line["replies"] == CONFIG["clients"] for line in lines[0])
    for which in ("lml", "client_nll"):
        scores, expected = ([line.get(which) for line in run] for run in lines)
        assert scores == expected and expected[-1] is not None
