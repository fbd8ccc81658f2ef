"""Sites: the data of a run whose clients have told sums of their rows, as server and clients have them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedpart import Dataset
from fedpart.data import Splits, preprocessing_of
from fedpart.data.dataset import Indices
from simulations.building.data import client_shards, load_data
from simulations.config.load import ExperimentConfig


@dataclass(frozen=True, eq=False)
class Elsewhere(Dataset):
    """So many ``rows`` of a client, of which a server knows the form of one, and no more."""

    rows: int = 1

    def __len__(self) -> int:
        return self.rows

    def subset(self, indices: Indices) -> Dataset:
        """Made-up rows, as many as are asked for."""
        inputs, (targets,) = self.batch(torch.zeros(len(indices), dtype=torch.int64))
        return Dataset(inputs, targets)


def data_of_sites(
    config: ExperimentConfig, known: Mapping[str, Any]
) -> tuple[Splits, Sequence[Dataset], tuple[str, ...]]:
    """Splits, shards and clients' names of what :func:`.gathered` knows: on the server, which has ``sites``,
    with the held-out rows in its own file; on a client its rows, for whatever number it has."""
    state = known["state"]
    if "sites" not in known:
        splits = load_data(config, statistics=lambda told: state)
        alone = len(splits.client_names) == 1
        shards = client_shards(config.model_copy(update={"clients": 1}) if alone else config, splits)
        return splits, shards * (config.clients if alone else 1), ()
    made, classes = preprocessing_of(state), tuple(state["sums"]["classes"])
    row, target = made(made.example(1)), torch.zeros(1, dtype=torch.int64 if classes else torch.float32)
    sites = [known["sites"].get(str(client), ("?", 1)) for client in range(config.clients)]
    shards = [Elsewhere(row, (target,), rows=rows) for _, rows in sites]
    nothing = Dataset(row[:0], target[:0])
    called = {"num_classes": len(classes) or 1, "classes": classes, "preprocessing": made}
    splits = Splits(shards[0], nothing, nothing, **called)
    if config.data_dir is not None and Path(config.data_dir).exists():
        held = load_data(config, statistics=lambda told: state)
        splits = replace(splits, validation=held.validation, test=held.test)
    return splits, shards, tuple(name for name, _ in sites)
