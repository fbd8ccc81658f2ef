"""Partitioned training whose last rounds train all weights on all clients, through the whole network.

``python docs/measurements/raw/finishing.py run CONFIG --set method=finishing
"method_options.finishing={begin: 400}"`` (as ``fedpart``); psi stays as it is then. Or
``python docs/measurements/raw/finishing.py mean RUN...``: how right each subnetwork of a partitioned run is,
and the mean of their probabilities.
"""

import sys
from pathlib import Path

import torch

from fedpart.methods.base import METHODS, ClientView
from fedpart.methods.partitioned import Partitioned
from fedpart.task.gradients import Job
from simulations.building.experiment import build
from simulations.cli.main import main
from simulations.config.load import load_config


@METHODS.register("finishing")
class Finishing(Partitioned):
    """As partitioned networks up to round ``begin``, then as FedAvg with the psi of then; with ``whole:
    false`` clients then train their own partitions, k..C, through the whole network."""

    def __init__(self, begin: int, whole: bool = True) -> None:
        super().__init__()
        self.begin, self.whole = begin, whole

    def plan(self, client: ClientView) -> list[Job]:
        if client.round <= self.begin:
            return super().plan(client)
        first = 1 if self.whole else client.chunk
        return [Job(subnetwork=client.chunks, partition=j) for j in range(first, client.chunks + 1)]


def mean(folder: Path, examples: int = 4000) -> None:
    """Print accuracies and losses on the first test images, by k and of the mean."""
    experiment = build(load_config(folder / "config.yaml"))
    state = experiment.start()
    state.load(folder / "checkpoint.pt")
    inputs, labels = experiment.test.batch(slice(examples))
    each = [torch.cat([*state.predict(inputs, k)]) for k in range(1, state.partition.chunks + 1)]
    chances = [outputs.softmax(-1) for outputs in each]
    for name, p in [*enumerate(chances, 1), ("mean", sum(chances) / len(chances))]:
        right, nll = (p.argmax(-1) == labels).double().mean(), -p.gather(1, labels[:, None]).log().mean()
        print(f"{name}: {100 * right:.1f}%, {nll:.3f} nats")


if __name__ == "__main__":
    if sys.argv[1] == "mean":
        for path in map(Path, sys.argv[2:]):
            mean(path)
    else:
        main()
