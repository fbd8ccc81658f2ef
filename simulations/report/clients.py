"""Who has what: how many examples of each label, or turned by which angles, every client holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpart import Dataset
from fedpart.data import angle_bins
from fedpart.federated.assignment import ChunkAssignment
from simulations.config.load import ExperimentConfig

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Clients:
    """The clients of a run, sorted by chunk and then by number.

    Attributes:
        chunks: chunk (1..C) of each, ``[N]``; all 1 where the method has none.
        labels: examples by label and client, ``[K, N]``; None without labels.
        angles: examples by angle bin and client, ``[bins, N]``; None if the images are not rotated.
        max_angle: degrees; the bins divide +- that evenly.
    """

    chunks: Counts
    labels: Counts | None
    angles: Counts | None
    max_angle: float

    @classmethod
    def of(cls, config: ExperimentConfig, shards: Sequence[Dataset], num_classes: int) -> Clients:
        """Count the clients' examples.

        Args:
            config: of a run; its method and seed decide the chunks.
            shards: client i holds ``shards[i]``.
            num_classes: K.
        """
        proportions = config.build_method().proportions(config.chunks)
        assignment = ChunkAssignment(proportions, config.clients, config.seed)
        chunks = np.array([assignment[client] for client in range(config.clients)])
        order = np.argsort(chunks, kind="stable")
        first, bins = shards[0], config.split.bins
        labels = angles = None
        if not first.targets.is_floating_point():
            labels = _counts([shard.targets.numpy() for shard in shards], num_classes)[:, order]
        if first.groups is not None and config.rotated:
            most = math.radians(config.max_angle)
            found = [angle_bins(shard.groups, bins, most) for shard in shards if shard.groups is not None]
            angles = _counts(found, bins)[:, order]
        return cls(chunks[order], labels, angles, config.max_angle)


def _counts(groups: Sequence[Counts], number: int) -> Counts:
    return np.stack([np.bincount(own, minlength=number) for own in groups], axis=1)
