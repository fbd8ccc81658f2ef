"""Workloads of ``bench``: what a round consists of, as plain data, with synthetic clients.

It imports torch alone, for the baselines in ``benchmarks/`` read it too, one of them where fedpart is not
installed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Workload:
    """One kind of round: FedAvg with psi frozen if there is one chunk, else partitioned with psi learned."""

    name: str
    model: str = "mnist_cnn"  # a name in fedpart.nn.models.MODELS
    shape: tuple[int, int, int] = (1, 28, 28)  # channels, height, width of an image
    classes: int = 10
    clients: int = 100
    examples: int = 12  # images of every client
    cohort: int = 10
    samples: int = 1  # S
    affine: float | None = None  # initial half-width of the affine augmentation (centred), None for none
    dropout: float | None = None  # initial rate of the learned dropout, None for none
    chunks: tuple[float, ...] = (1.0,)  # proportions of clients and parameters
    batch_size: int = 64  # of local SGD, one epoch, as the next
    learning_rate: float = 5e-2
    psi_batch: int | None = None  # examples behind a psi gradient, None for all of the client's
    server: str = "adam"  # or sgd
    server_learning_rate: float = 1e-3
    psi_learning_rate: float = 3e-3  # of the server's Adam
    seed: int = 0

    @property
    def partitioned(self) -> bool:
        """Whether clients train partitions and psi, and not the whole network."""
        return len(self.chunks) > 1

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Workload":
        """Inverse of :func:`dataclasses.asdict`, also after a passage through JSON."""
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})

    def shard(self, client: int) -> tuple[Tensor, Tensor]:
        """Synthetic images ``[examples, *shape]`` in [0, 1] and labels ``[examples]`` of a client."""
        generator = torch.Generator().manual_seed(self.seed * self.clients + client)
        images = torch.rand(self.examples, *self.shape, generator=generator)
        return images, torch.randint(self.classes, (self.examples,), generator=generator)


_AUGMENTED: dict[str, Any] = {"examples": 50, "samples": 10, "affine": 0.1}

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("W1"),
        Workload("W2", **_AUGMENTED),
        Workload("W3", **_AUGMENTED, dropout=0.1, chunks=(0.7, 0.2, 0.1)),
        Workload(
            "W4",
            **_AUGMENTED,
            model="resnet9",
            shape=(3, 32, 32),
            dropout=0.1,
            chunks=(0.9, 0.1),
            batch_size=32,
            learning_rate=10**-0.5,
            psi_batch=32,
        ),
        Workload(  # the CIFAR-10 IID benchmark of apple's pfl
            "P1",
            model="pfl_cnn",
            shape=(3, 32, 32),
            clients=1000,
            examples=50,
            cohort=50,
            batch_size=10,
            learning_rate=0.1,
            server="sgd",
            server_learning_rate=1.0,
        ),
    )
}
