"""Data sets, their sources by name, the embedded digits, MNIST's files, random subsets."""

import os
import pkgutil
import re
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from places import ROOT

from fedpart.data import DATASETS, Dataset, load_digits, load_splits, random_subset, rotated, sets
from fedpart.data.given import as_dataset


@pytest.fixture(scope="module")
def digits():
    return load_splits("digits")


def ramp(n=6):
    return Dataset(torch.arange(n * 4.0).reshape(n, 1, 2, 2), torch.arange(n), torch.linspace(-1, 1, n))


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


def test_digits(digits):
    assert [len(part) for part in digits.parts().values()] == [1297, 250, 250]
    assert digits.num_classes == 10
    everything = torch.cat([part.inputs for part in digits.parts().values()])
    assert everything.shape == (1797, 1, 28, 28) and everything.dtype == torch.float32
    assert everything.min() == 0 and 0.95 < everything.max() <= 1
    assert len(everything.flatten(1).unique(dim=0)) == 1797  # no image in two parts
    for part in digits.parts().values():  # every class in every part
        assert torch.bincount(part.targets, minlength=10).min() > 0.05 * len(part)
    again = load_digits()
    assert all(torch.equal(a.inputs, again.parts()[name].inputs) for name, a in digits.parts().items())


def test_digits_are_upright_digits(digits):
    # A nearest-mean classifier tells them apart: images and labels belong together.
    train, test = digits.train, digits.test
    means = torch.stack([train.inputs[train.targets == c].mean(0).flatten() for c in range(10)])
    guess = torch.cdist(test.inputs.flatten(1), means).argmin(1)
    assert (guess == test.targets).float().mean() > 0.8


def test_every_file_of_the_folder_sets_is_known_by_a_name():
    files = {file.name for file in pkgutil.iter_modules(sets.__path__, f"{sets.__name__}.")}
    assert files <= {getattr(loader, "func", loader).__module__ for loader in DATASETS.values()}


def test_random_subset(digits):
    data = rotated(digits.train, seed=0)
    small, again, other = (random_subset(data, 100, seed) for seed in (0, 0, 1))
    assert len(small) == 100 and torch.equal(small.inputs, again.inputs)
    assert not torch.equal(small.groups, other.groups)
    assert set(small.groups.tolist()) < set(random_subset(data, 300, 0).groups.tolist())  # nested
    assert len(small.groups.unique()) == 100  # without replacement
    assert random_subset(data, None, 0) is data
    assert torch.equal(random_subset(data, len(data), 0).inputs, data.inputs)


MNIST_FOLDER = Path(os.environ.get("FEDPART_DATA_DIR", ROOT.parent / "shared" / "data"))


def write_idx(path, array, shape=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = array.shape if shape is None else shape
    path.write_bytes(struct.pack(f">{1 + len(shape)}I", 0x0800 + len(shape), *shape) + array.tobytes())


@pytest.fixture
def small_mnist(tmp_path):
    """Files in MNIST's form: 10,030 training images, each filled with its label times 20; 20 test images."""
    for prefix, n in (("train", 10_030), ("t10k", 20)):
        labels = (np.arange(n) % 10).astype(np.uint8)
        images = np.broadcast_to((labels * 20)[:, None, None], (n, 28, 28))
        write_idx(tmp_path / "MNIST" / "raw" / f"{prefix}-images-idx3-ubyte", images)
        write_idx(tmp_path / "MNIST" / "raw" / f"{prefix}-labels-idx1-ubyte", labels)
    return tmp_path


def test_mnist_files_are_read_and_split(small_mnist):
    splits = load_splits("mnist", str(small_mnist))
    assert [len(part) for part in splits.parts().values()] == [30, 10_000, 20]
    for part in splits.parts().values():
        assert part.inputs.shape[1:] == (1, 28, 28)
        assert torch.allclose(part.inputs[:, 0, 3, 4], part.targets * 20 / 255)
    assert splits.train.targets.tolist() == [i % 10 for i in range(30)]  # the first; validation is the last


@pytest.mark.slow
def test_files_that_are_there_are_read_without_torchvision(small_mnist):
    """Its import takes seconds, and a deployed client is a process for every message."""
    program = (
        "import sys; from fedpart.data import load_mnist; load_mnist(sys.argv[1]); print(sorted("
        "{'torchvision', 'torch._dynamo', 'PIL', 'sklearn', 'flwr', 'ray'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program, str(small_mnist)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]", "importing fedpart.data imports no reader"


def test_missing_mnist_is_downloaded_where_a_network_exists(small_mnist, tmp_path, monkeypatch, capsys):
    from torchvision.datasets import MNIST

    target = tmp_path / "new"
    monkeypatch.chdir(tmp_path)

    def fetch(self):
        assert capsys.readouterr().err == f"Downloading MNIST into {target}.\n"
        shutil.copytree(small_mnist / "MNIST" / "raw", self.raw_folder)

    monkeypatch.setattr(MNIST, "download", fetch)
    for _ in range(2):
        assert len(load_splits("mnist", str(target)).train) == 30
    assert not capsys.readouterr().err  # it is there


def test_failed_download_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    from torchvision.datasets import MNIST

    def fail(self):
        Path(self.raw_folder).mkdir(parents=True)
        assert socket.getdefaulttimeout() is not None
        raise RuntimeError("Error downloading it:\nTried mirror:\n<urlopen error no network>")

    monkeypatch.setattr(MNIST, "download", fail)
    monkeypatch.chdir(tmp_path)
    before = socket.getdefaulttimeout()
    says = r"download failed \(<urlopen error no network>\); set data_dir"
    with pytest.raises(FileNotFoundError, match=says) as caught:
        load_splits("mnist", str(tmp_path / "new"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()
    assert socket.getdefaulttimeout() == before


def test_no_folder_is_created_outside_of_the_current_one(small_mnist, tmp_path, monkeypatch):
    from torchvision.datasets import MNIST

    def fetch(self):
        shutil.copytree(small_mnist / "MNIST" / "raw", self.raw_folder, dirs_exist_ok=True)

    monkeypatch.setattr(MNIST, "download", fetch)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for elsewhere in ("../shared/data", str(tmp_path / "there"), "inside/../../there"):
        with pytest.raises(FileNotFoundError, match="none is created outside of the current folder"):
            load_splits("mnist", elsewhere)
    assert [path.name for path in tmp_path.iterdir() if path.name in ("shared", "there", "here")] == ["here"]
    (tmp_path / "there").mkdir()
    assert len(load_splits("mnist", "../there").train) == 30, "what is there may be filled"


@pytest.mark.slow
@pytest.mark.skipif(not (MNIST_FOLDER / "MNIST").is_dir(), reason="MNIST is not here: set FEDPART_DATA_DIR")
def test_real_images():
    splits = load_splits("mnist", str(MNIST_FOLDER))
    assert [len(part) for part in splits.parts().values()] == [50_000, 10_000, 10_000]
    assert splits.train.targets[:5].tolist() == [5, 0, 4, 1, 9]
    original = torch.cat([splits.train.inputs, splits.validation.inputs])
    assert original.mean().item() == pytest.approx(0.1307, abs=1e-4)
    assert original.min() == 0 and original.max() <= 1
    assert set(random_subset(splits.train, 1250, seed=0).targets.tolist()) == set(range(10))


def test_examples_are_chosen_by_places_a_slice_or_a_mask():
    data, wanted = ramp(), [1, 3, 5]
    mask = [place in wanted for place in range(6)]
    for chosen in (wanted, slice(1, None, 2), mask, np.array(mask), torch.tensor(mask)):
        assert data.subset(chosen).targets.tolist() == wanted
    assert len(data.subset([])) == len(data.subset([False] * 6)) == 0
    for chosen, said in (
        (mask[:5], "[6] bool, got [5]"),
        ([0.9, 1.9], "float"),
        ([[0], [1]], "[m] integers"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            data.subset(chosen)
    assert [int(label) for _, label in data] == data.targets.tolist()
    assert as_dataset(torch.utils.data.Subset(data, wanted)).targets.tolist() == wanted
