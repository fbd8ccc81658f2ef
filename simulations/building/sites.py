"""Sites: the data of a run whose clients may have files of their own, as server and clients have them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedpart import Dataset
from fedpart.data import Splits, preprocessing_of
from fedpart.data.dataset import Indices
from fedpart.data.preprocessing import Preprocessing
from fedpart.nn.likelihoods import LIKELIHOODS
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


def rows_told(made: Preprocessing | None) -> list[int]:
    """How many training rows each client has told; none if they were not asked."""
    return [] if made is None else [*made.state.get("sums", {}).get("rows", {}).values()]


def data_of(config: ExperimentConfig) -> tuple[Splits, Sequence[Dataset]]:
    """Splits, and what each client holds: of a file with all clients; or, where ``statistics`` are there, of
    one with a client's own rows, its shard by any number, or without a file, what a server knows of them."""
    known = config.data_options.get("statistics")
    if not (config.apart and isinstance(known, Mapping)):
        splits = load_data(config)
        return splits, client_shards(config, splits)
    if config.data_dir is not None and Path(config.data_dir).exists():
        splits = load_data(config)
        alone = len(splits.client_names) == 1
        shards = client_shards(config.model_copy(update={"clients": 1}) if alone else config, splits)
        return splits, shards * (config.clients if alone else 1)
    made, classes = preprocessing_of(known), tuple(known["sums"]["classes"])
    if not getattr(LIKELIHOODS.resolve(config.likelihood), "scaled", False):
        made.state.pop("target", None)
    row, target = made(made.example(1)), torch.zeros(1, dtype=torch.int64 if classes else torch.float32)
    sizes = [known["sums"]["rows"].get(str(client), 1) for client in range(config.clients)]
    shards = [Elsewhere(row, (target,), rows=rows) for rows in sizes]
    nothing = Dataset(row[:0], target[:0])
    return Splits(shards[0], nothing, nothing, len(classes) or 1, classes, made), shards
