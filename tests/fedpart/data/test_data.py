"""Data sets, their sources by name, the embedded digits, random subsets."""

import math
import pkgutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from places import ROOT

from fedpart.data import DATASETS, Dataset, Splits, load_digits, load_splits, random_subset, rotated, sets

NOT_CALLABLE = "text"


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


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64)), "differ in length"),
        ((torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), torch.zeros(2)), "differ in length"),
        (
            (torch.tensor([[0.0], [math.nan], [math.inf]]), torch.zeros(3, dtype=torch.int64)),
            "in 2 of 3 examples",
        ),
        ((torch.zeros(3, 2), torch.tensor([0.0, math.nan, 1.0])), "targets hold NaN"),
        (
            (torch.zeros(2), torch.zeros(2, dtype=torch.int64), torch.tensor([0.0, math.nan])),
            "groups hold NaN",
        ),
        (
            (torch.zeros(2), torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)),
            "floating point",
        ),
        ((torch.zeros(3, 2), torch.tensor([0, -1, 2])), "must be 0 or more, got -1"),
        ((torch.zeros(3, 2), torch.tensor([True, False, True])), "must be \\[n\\] integers"),
        (({"a": torch.zeros(3, 2), "b": [torch.zeros(2)]}, torch.zeros(3)), r"inputs\['b'\]\[0\]\": 2"),
        (({"a": torch.zeros(3, 2, dtype=torch.uint8)}, torch.zeros(3)), r"inputs\['a'\] are torch.uint8"),
        ((torch.zeros(3, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)), "float32 for images"),
        ((torch.tensor(1.0), torch.tensor(1)), "one entry per example"),
    ],
)
def test_malformed_data_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        Dataset(*parts)


def test_arrays_are_refused():
    with pytest.raises(TypeError, match="inputs must be a torch tensor, got ndarray"):
        Dataset(np.zeros((3, 2)), torch.zeros(3))


def test_labels_outside_the_classes():
    with pytest.raises(
        ValueError, match=r"2 of 6 labels of the test set lie outside the 4 classes 0\.\.3 .* is 5\)"
    ):
        Splits(ramp(4), ramp(4), ramp(6), num_classes=4)
    Splits(ramp(4), ramp(4), ramp(4), num_classes=4)


def test_empty_training_set():
    with pytest.raises(ValueError, match="training set is empty"):
        Splits(ramp().subset([]), ramp(), ramp(), num_classes=6)


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
    return Splits(data, data, data, num_classes=int(data_dir or 6))


def not_a_loader(data_dir):
    return [1, 2, 3]


def test_own_data_set_by_name():
    assert len(load_splits(f"{__name__}:own_loader").train) == 6
    with pytest.raises(ValueError, match=r"3 of 6 labels of the train set .* the 3 classes.*targets\.float"):
        load_splits(f"{__name__}:own_loader", "3")
    with pytest.raises(TypeError, match="returned list; its loader must return"):
        load_splits(f"{__name__}:not_a_loader")
    with pytest.raises(TypeError, match="name a function"):
        load_splits(f"{__name__}:NOT_CALLABLE")
    with pytest.raises(ValueError, match="did you mean 'digits'"):
        load_splits("digit")
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
    for points in (0, len(data) + 1):
        with pytest.raises(ValueError, match="points must lie between 1 and the 1297"):
            random_subset(data, points, 0)
