"""guides/data.md: a partitioner of flwr-datasets as a recipe, as it stands there, on a stand-in for it."""

import re
import sys
from types import ModuleType

import numpy as np
import pytest
import yaml
from command_line import fedpart
from places import ROOT
from tiny import tiny_file

from simulations.building.experiment import build
from simulations.config.load import load_config
from simulations.folders.run_directory import read_summary

TEXT = (ROOT / "docs" / "guides" / "data.md").read_text()


class Dataset:
    """A table, as of the package ``datasets``: a column is a sequence, not an array."""

    def __init__(self, columns):
        self.columns = {name: list(values) for name, values in columns.items()}

    @classmethod
    def from_dict(cls, mapping):
        return cls(mapping)

    def __getitem__(self, name):
        return self.columns[name]

    def select(self, indices):
        return Dataset({name: [values[i] for i in indices] for name, values in self.columns.items()})


class PathologicalPartitioner:
    """Partition i has the classes i, i + 1, ..., in any order; what no partition has is left out."""

    def __init__(self, num_partitions, partition_by, num_classes_per_partition, *, seed=42):
        self.partitions, self.column, self.classes = num_partitions, partition_by, num_classes_per_partition
        self.random, self._dataset = np.random.default_rng(seed), None

    @property
    def dataset(self):
        if self._dataset is None:
            raise AttributeError("The dataset should be set before it is used.")
        return self._dataset

    @dataset.setter
    def dataset(self, value):
        if self._dataset is not None:
            raise Exception("The dataset should be assigned only once.")
        self._dataset = value

    def load_partition(self, partition_id):
        labels = np.asarray(self.dataset[self.column])
        own = [np.flatnonzero(labels == (partition_id + k) % 10) for k in range(self.classes)]
        found = [np.array_split(rows, self.classes)[k] for k, rows in enumerate(own)]
        return self.dataset.select(self.random.permutation(np.concatenate(found)).tolist())


@pytest.fixture
def setting(tmp_path, monkeypatch):
    """What the page says to write into the configuration, beside the module that it shows."""
    (code,) = re.findall(r"```python[^\n]*\n# my_partitions\.py\n(.*?)```", TEXT, re.DOTALL)
    (setting,) = re.findall(r"`(split: \{recipe: \"my_partitions.*?\})`", TEXT)
    (tmp_path / "my_partitions.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, content in (
        ("datasets", {"Dataset": Dataset}),
        ("flwr_datasets", {}),
        ("flwr_datasets.partitioner", {"PathologicalPartitioner": PathologicalPartitioner}),
    ):
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "my_partitions", raising=False)
    return setting


@pytest.mark.slow
def test_a_partitioner_is_a_recipe(setting, tmp_path):
    file = tiny_file(tmp_path, **yaml.safe_load(setting), rounds=1)
    shards = build(load_config(file)).shards
    labels = [set(shard.targets.tolist()) for shard in shards]
    assert labels == [{client, client + 1} for client in range(6)]
    done = fedpart("run", str(file), "--out", "run")
    assert done.exit_code == 0, done.output
    assert read_summary("run")["rounds"] == 1
