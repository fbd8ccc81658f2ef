"""MNIST's files: read, checked, fetched.

The real ones are read where they exist, and replaced by the embedded digits, with a warning, elsewhere.
"""

import os
import socket
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from places import ROOT

from fedpart.data import load_splits, random_subset

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


def test_files_that_are_there_are_read_without_torchvision(small_mnist):
    """Its import takes seconds, and a deployed client is a process for every message."""
    program = (
        "import sys; from fedpart.data import load_mnist; load_mnist(sys.argv[1]); "
        "print(sorted({'torchvision', 'torch._dynamo', 'PIL'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program, str(small_mnist)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_missing_mnist_is_downloaded_where_a_network_exists(small_mnist, tmp_path, monkeypatch, capsys):
    from torchvision.datasets import MNIST

    target = tmp_path / "new"
    monkeypatch.chdir(tmp_path)

    def fetch(self):
        assert capsys.readouterr().err == f"Downloading MNIST into {target}.\n"
        Path(self.raw_folder).mkdir(parents=True)
        for file in (small_mnist / "MNIST" / "raw").iterdir():
            (Path(self.raw_folder) / file.name).write_bytes(file.read_bytes())

    monkeypatch.setattr(MNIST, "download", fetch)
    for _ in range(2):
        assert len(load_splits("mnist", str(target)).train) == 30
    assert not capsys.readouterr().err  # it is there


def test_failed_download_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    from torchvision.datasets import MNIST

    def fail(self):
        Path(self.raw_folder).mkdir(parents=True)
        assert socket.getdefaulttimeout() is not None
        raise RuntimeError(
            "Error downloading train-images-idx3-ubyte.gz:\nTried mirror:\n<urlopen error no network>"
        )

    monkeypatch.setattr(MNIST, "download", fail)
    monkeypatch.chdir(tmp_path)
    before = socket.getdefaulttimeout()
    with pytest.raises(
        FileNotFoundError, match=r"download failed \(<urlopen error no network>\); set data_dir"
    ) as caught:
        load_splits("mnist", str(tmp_path / "new"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()
    assert socket.getdefaulttimeout() == before


def test_no_folder_is_created_outside_of_the_current_one(small_mnist, tmp_path, monkeypatch):
    from torchvision.datasets import MNIST

    def fetch(self):
        for file in (small_mnist / "MNIST" / "raw").iterdir():
            Path(self.raw_folder).mkdir(parents=True, exist_ok=True)
            (Path(self.raw_folder) / file.name).write_bytes(file.read_bytes())

    monkeypatch.setattr(MNIST, "download", fetch)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for elsewhere in ("../shared/data", str(tmp_path / "there"), "inside/../../there"):
        with pytest.raises(FileNotFoundError, match="none is created outside of the current folder"):
            load_splits("mnist", elsewhere)
    assert [path.name for path in tmp_path.iterdir() if path.name in ("shared", "there", "here")] == ["here"]
    (tmp_path / "there").mkdir()
    assert len(load_splits("mnist", "../there").train) == 30, "what is there may be filled"


def real_images():
    """The real MNIST, or loudly, where its files are missing, the embedded digits."""
    if (MNIST_FOLDER / "MNIST").is_dir():
        return "mnist", load_splits("mnist", str(MNIST_FOLDER))
    warnings.warn(
        f"MNIST is not in {MNIST_FOLDER} (set FEDPART_DATA_DIR): the digits are tested in its place.",
        stacklevel=2,
    )
    return "digits", load_splits("digits")


def test_real_images():
    expected = {  # sizes, first labels, mean pixel of training and validation together
        "mnist": ([50_000, 10_000, 10_000], [5, 0, 4, 1, 9], 0.1307),
        "digits": ([1297, 250, 250], None, 0.3053),
    }
    name, splits = real_images()
    sizes, labels, mean = expected[name]
    assert [len(part) for part in splits.parts().values()] == sizes
    assert labels is None or splits.train.targets[:5].tolist() == labels
    original = torch.cat([splits.train.inputs, splits.validation.inputs])
    assert original.mean().item() == pytest.approx(mean, abs=1e-4 if name == "mnist" else 1e-2)
    assert original.min() == 0 and original.max() <= 1
    small = random_subset(splits.train, 1250, seed=0)
    assert set(small.targets.tolist()) == set(range(10))
