"""Data sets, their sources by name, the embedded digits, random subsets."""

import pkgutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from places import ROOT

from fedpart.data import DATASETS, Dataset, Splits, load_digits, load_splits, random_subset, rotated, sets


@pytest.fixture(scope="module")
def digits():
    return load_splits("digits")


def ramp(n=6):
    return Dataset(torch.arange(n * 4.0).reshape(n, 1, 2, 2), torch.arange(n), torch.linspace(-1, 1, n))


# Dataset and Splits


def test_dataset_subset_and_move():
    data = ramp().subset(np.array([4, 1, 1]))
    assert len(data) == 3
    assert data.targets.tolist() == [4, 1, 1]
    assert torch.equal(data.inputs[0], ramp().inputs[4]) and torch.equal(data.groups[0], ramp().groups[4])
    moved = data.to("cpu", torch.float64)
    assert moved.inputs.dtype == moved.groups.dtype == torch.float64
    assert moved.targets.dtype == torch.int64 and moved.to("cpu") is moved
    tokens = Dataset(torch.ones(3, 5, dtype=torch.int64), torch.tensor([1, 2, 3], dtype=torch.uint8))
    assert tokens.to(dtype=torch.float64).inputs.dtype == torch.int64
    assert tokens.targets.dtype == torch.int64
    regression = Dataset(torch.zeros(3, 2), torch.tensor([-1.0, 0.5, 2.0]))
    assert regression.to(dtype=torch.float64).targets.dtype == torch.float64


# Sources


def test_digits(digits):
    assert [len(part) for part in digits.parts().values()] == [1297, 250, 250]
    assert digits.num_classes == 10
    everything = torch.cat([part.inputs for part in digits.parts().values()])
    assert everything.shape == (1797, 1, 28, 28) and everything.dtype == torch.float32
    assert everything.min() == 0 and 0.95 < everything.max() <= 1
    assert len(everything.flatten(1).unique(dim=0)) == 1797  # no image in two parts
    for part in digits.parts().values():
        assert torch.bincount(part.targets, minlength=10).min() > 0.05 * len(
            part
        )  # every class in every part
    again = load_digits()
    assert all(torch.equal(a.inputs, again.parts()[name].inputs) for name, a in digits.parts().items())


def test_digits_are_upright_digits(digits):
    # A nearest-mean classifier tells them apart: images and labels belong together.
    train, test = digits.train, digits.test
    means = torch.stack([train.inputs[train.targets == c].mean(0).flatten() for c in range(10)])
    guess = torch.cdist(test.inputs.flatten(1), means).argmin(1)
    assert (guess == test.targets).float().mean() > 0.8


def own_loader(data_dir):
    data = ramp()
    return Splits(data, data, data, num_classes=int(data_dir))


def test_own_data_set_by_name():
    splits = load_splits(f"{__name__}:own_loader", "7")
    assert len(splits.train) == 6 and splits.num_classes == 7
    assert {"digits", "mnist"} <= set(DATASETS.names())


def test_every_file_of_the_folder_sets_is_known_by_a_name():
    files = {file.name for file in pkgutil.iter_modules(sets.__path__, f"{sets.__name__}.")}
    assert files <= {getattr(loader, "func", loader).__module__ for loader in DATASETS.values()}


def test_importing_the_data_package_imports_no_reader():
    program = (
        "import sys, fedpart.data; loaded = {n.partition('.')[0] for n in sys.modules};"
        "print(sorted(loaded & {'sklearn', 'torchvision', 'flwr', 'ray'}))"
    )
    root = ROOT
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# Subset


def test_random_subset(digits):
    data = rotated(digits.train, seed=0)
    small, again, other = (random_subset(data, 100, seed) for seed in (0, 0, 1))
    assert len(small) == 100 and torch.equal(small.inputs, again.inputs)
    assert not torch.equal(small.groups, other.groups)
    assert set(small.groups.tolist()) < set(random_subset(data, 300, 0).groups.tolist())  # nested
    assert len(small.groups.unique()) == 100  # without replacement
    assert random_subset(data, None, 0) is data
    assert torch.equal(random_subset(data, len(data), 0).inputs, data.inputs)
