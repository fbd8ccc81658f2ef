"""The data of a comparison, read again as its configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpart import Dataset
from fedpart.data import Splits
from simulations.building.data import load_data, split_among_clients
from simulations.config.load import Config, ExperimentConfig
from simulations.folders.data_files import changed_data, in_short, listed_data


@dataclass(frozen=True)
class Data:
    """What the runs of a comparison have in common: their data, and who holds which.

    No run saves its counts: configuration and data decide them, and pictures need the images anyway.
    """

    splits: Splits
    shards: Sequence[Dataset]  # none of a centralised run


def read_data(config: Config, folders: Sequence[Path]) -> Data | str:
    """Read and split the data, and download nothing; or a sentence on why that cannot be done here.

    The runs' ``folders`` know what files they are made of.
    """
    if config.data_dir is not None and not Path(config.data_dir).exists():
        return f"The data cannot be read here (there is no {config.data_dir})."
    try:
        listed = listed_data(config)
        others = next(filter(None, (changed_data(folder, listed) for folder in folders)), None)
        if others:
            return f"The data are not those that the runs are made of ({in_short(others)})."
        splits = load_data(config, download=False)
        federated = isinstance(config, ExperimentConfig)
        return Data(splits, split_among_clients(config, splits.train) if federated else [])
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        return f"The data cannot be read here ({reason})."
