"""Data sets of torchvision by name, and CIFAR-10 in the forms in which it is stored."""

import pickle
from functools import partial

import numpy as np
import pytest
import refusals
import torch
from places import DATA
from torchvision import datasets

from fedpart.data import divide, load_splits


def write_cifar(root, per_batch=12):
    """torchvision's files for CIFAR10 with few images; pixel (row, column) of image i is (i, row, column)."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rows, columns = np.meshgrid(np.arange(32), np.arange(32), indexing="ij")
    for number, name in enumerate([*(f"data_batch_{b}" for b in range(1, 6)), "test_batch"]):
        numbers = range(number * per_batch, (number + 1) * per_batch)
        images = np.stack([np.stack([np.full((32, 32), i), rows, columns]) for i in numbers])
        pixels = images.astype(np.uint8).reshape(per_batch, -1)
        batch = {"data": pixels, "labels": [i % 10 for i in range(per_batch)]}
        (folder / name).write_bytes(pickle.dumps(batch))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    write_cifar(tmp_path / "data")
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5: True)
    return tmp_path / "data"


def test_cifar10_in_torchvisions_layout(cifar):
    splits = load_splits("cifar10", str(cifar), validation=10)
    assert [len(part) for part in splits.parts().values()] == [50, 10, 12]
    assert splits.num_classes == 10
    assert splits.validation.targets.bincount().tolist() == [1] * 10
    assert splits.classes == tuple("abcdefghij")
    image = splits.test.inputs[3] * 255
    assert image[:, 5, 7].round().tolist() == [63, 5, 7]  # channel, row, column
    same = load_splits("torchvision", str(cifar), name="CIFAR10", validation=10)
    assert torch.equal(same.train.inputs, splits.train.inputs)
    small = load_splits("cifar10", str(cifar), validation=10, size=16).test.inputs
    assert small.shape == (12, 3, 16, 16)
    assert float(small[3, 1].mean()) == pytest.approx(float(splits.test.inputs[3, 1].mean()), abs=0.01)


def test_which_images_are_held_out():
    targets = torch.tensor([0, 1, 0, 0, 1, 0, 2, 0, 1, 0, 0, 2])
    assert divide(targets, 4, "last").held_out.tolist() == [8, 9, 10, 11]
    kept, out = divide(targets, 4, "last_of_class")
    assert out.tolist() == [8, 9, 10, 11]  # of 7, 3 and 2 examples: 2, 1 and 1
    assert sorted([*kept.tolist(), *out.tolist()]) == list(range(12))
    assert divide(targets, 0.25, "last").held_out.tolist() == [9, 10, 11]
    draws = [divide(targets, 4, "random", seed).held_out.tolist() for seed in (*range(20), 3)]
    assert len({*map(tuple, draws)}) > 5 and draws[-1] == draws[3]
    assert all(targets[out].bincount().tolist() == [2, 1, 1] for out in draws)


def test_a_torchvision_class_by_its_name_and_arguments_that_it_hands_on(tmp_path, monkeypatch):
    class Small(datasets.vision.VisionDataset):
        def __init__(self, root, split="train", letters=3, download=False):
            super().__init__(root)
            self.split, self.letters = split, letters

        def __len__(self):
            return {"train": 20, "test": 6}[self.split]

        def __getitem__(self, place):
            from PIL import Image

            return Image.new("L", (9, 7), 10 * place), place % self.letters

    monkeypatch.setattr(datasets, "SVHN", Small)
    splits = load_splits("svhn", str(tmp_path), options={"letters": 2}, validation=4, size=7)
    assert [len(part) for part in splits.parts().values()] == [16, 4, 6]
    assert splits.num_classes == 2 and splits.train.inputs.shape == (16, 1, 7, 7)
    assert torch.allclose(splits.test.inputs[4], torch.tensor(40 / 255))

    def load(self):
        assert self.split == "letters"
        n = 30 if self.train else 9
        return torch.zeros(n, 28, 28, dtype=torch.uint8), torch.arange(n) % 3

    monkeypatch.setattr(datasets.EMNIST, "_check_exists", lambda self: True)
    monkeypatch.setattr(datasets.EMNIST, "_load_data", load)
    splits = load_splits("torchvision", str(tmp_path), name="EMNIST", options={"split": "letters"})
    assert [len(part) for part in splits.parts().values()] == [27, 3, 9]


def test_what_torchvision_cannot_do_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    here, new = str(tmp_path), str(tmp_path / "new")
    refusals.check(
        (says, partial(load_splits, name, *place, **options), error, says)
        for name, place, options, error, says in [
            ("torchvision", [here], {"name": "FashonMNIST"}, ValueError, "did you mean 'FashionMNIST'"),
            ("fashion_mnist", [], {}, FileNotFoundError, "FashionMNIST needs data_dir"),
            ("cifar100", [new], {"download": False}, FileNotFoundError, "is not downloaded; set data_dir"),
            ("torchvision", [here], {"name": "Caltech101"}, ValueError, "is not divided into training and"),
        ]
    )
    assert "Downloading" not in capsys.readouterr().err

    def fail(self):
        assert capsys.readouterr().err == f"Downloading CIFAR10 into {tmp_path / 'new'}.\n"
        raise OSError("<urlopen error no network>")

    monkeypatch.setattr(datasets.CIFAR10, "download", fail)
    says = r"CIFAR10 is not in .*download failed \(.*no network"
    with pytest.raises(FileNotFoundError, match=says) as caught:
        load_splits("cifar10", str(tmp_path / "new"))
    assert "\n" not in str(caught.value) and not (tmp_path / "new").exists()


def test_a_zip_file_that_does_not_exist_is_not_a_folder_to_download_into(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.CIFAR10, "download", lambda self: pytest.fail("it downloads"))
    with pytest.raises(FileNotFoundError, match=r"images: .*missing\.ZIP does not exist; .* zip file with"):
        load_splits("cifar10", str(tmp_path / "missing.ZIP"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not list(DATA.glob("cifar10*")), reason="CIFAR-10 is not here: set FEDPART_DATA_DIR")
def test_real_cifar10():
    splits = load_splits("cifar10", str(DATA))
    assert [len(part) for part in splits.parts().values()] == [45_000, 5_000, 10_000]
    for part, each in ((splits.train, 4500), (splits.validation, 500), (splits.test, 1000)):
        assert part.targets.bincount().tolist() == [each] * 10
    some = splits.train.subset(range(0, 45_000, 90)).inputs
    assert some.shape == (500, 3, 32, 32)
    means = torch.tensor([0.4914, 0.4822, 0.4465])  # of CIFAR-10's training set
    assert torch.allclose(some.mean((0, 2, 3)), means, atol=0.02)
