"""Images in a folder per class: layouts, sizes, the division, what is refused."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import COLOURS, image, write_class_folders, zipped
from PIL import Image

from fedpart.data import ImageDataset, load_image_folder, load_splits
from fedpart.data.images import pixels


@pytest.fixture
def divided(tmp_path):
    """train/ with 10 images of each of three classes, test/ with 4, all 16x16."""
    write_class_folders(tmp_path / "data" / "train", 10, odd=False)
    write_class_folders(tmp_path / "data" / "test", 4, odd=False)
    return tmp_path / "data"


def test_the_parts_are_the_folders(divided):
    splits = load_splits("image_folder", str(divided), validation=6)
    assert splits.num_classes == 3
    assert [len(part) for part in splits.parts().values()] == [24, 6, 12]
    assert splits.validation.targets.bincount().tolist() == [2, 2, 2]
    for part in splits.parts().values():
        assert part.inputs.shape[1:] == (3, 16, 16) and part.inputs.dtype == torch.float32
        for label, colour in enumerate(COLOURS.values()):  # alphabetical
            mean = part.inputs[part.targets == label].mean((0, 2, 3))
            assert torch.allclose(mean, torch.tensor(colour) / 255, atol=0.03)
    everything = torch.cat([part.inputs for part in splits.parts().values()])
    assert len(everything.flatten(1).unique(dim=0)) == 42  # no image in two parts


@pytest.mark.parametrize("above", ["", "some/folder"])
def test_a_zip_file_is_its_folder(divided, tmp_path, above):
    (divided / "train" / "blue" / "notes.txt").write_text("no image")
    (divided / "train" / "blue" / "._00.png").write_bytes(b"left by a Mac")
    folder = load_image_folder(str(divided))
    inside = load_image_folder(str(zipped(divided, tmp_path / "data.zip", above)))
    for name, part in folder.parts().items():
        assert torch.equal(part.inputs, inside.parts()[name].inputs)
        assert torch.equal(part.targets, inside.parts()[name].targets)


def test_one_folder_is_divided_by_the_data_seed(tmp_path):
    write_class_folders(tmp_path / "data", 20, odd=False)

    def load(**options):
        parts = load_splits("image_folder", str(tmp_path / "data"), **options).parts()
        return {name: part.inputs for name, part in parts.items()}, parts

    first, parts = load()
    assert [len(part) for part in parts.values()] == [43, 5, 12]  # 20% and then 10% of 60
    assert parts["test"].targets.bincount().tolist() == [4, 4, 4]
    assert len(torch.cat(list(first.values())).flatten(1).unique(dim=0)) == 60
    assert all(torch.equal(images, load()[0][name]) for name, images in first.items())
    assert not torch.equal(first["test"], load(data_seed=1)[0]["test"])
    assert len(load(test=0, validation=3)[0]["train"]) == 57


def test_a_validation_folder_is_the_validation_set(divided):
    os.rename(divided / "test", divided / "val")
    splits = load_image_folder(str(divided), test=3)
    assert [len(part) for part in splits.parts().values()] == [27, 12, 3]


def test_sizes_and_colours(tmp_path):
    write_class_folders(tmp_path / "data", 6)
    with pytest.raises(ValueError, match=r"Images differ in size: .*png is \d+x\d+.* data_options: \{size"):
        _ = load_image_folder(str(tmp_path / "data")).train.inputs
    splits = load_image_folder(str(tmp_path / "data"), size=12)
    assert splits.train.inputs.shape[1:] == (3, 12, 12)
    grey = load_image_folder(str(tmp_path / "data"), size=12, colour="grey").train.inputs
    weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    assert torch.allclose(grey, (splits.train.inputs * weights).sum(1, keepdim=True), atol=2 / 255)


def test_the_shorter_side_is_scaled_and_the_middle_kept():
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = 200  # the middle square
    assert (pixels(Image.fromarray(wide), 5, "rgb")[:, :, 1:-1] == 200).all()
    assert pixels(Image.fromarray(wide), None, "grey").shape == (1, 10, 30)
    turned = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    turned.getexif()[0x0112] = 6  # the camera was held on its side
    assert pixels(turned, None, "grey")[0].tolist() == np.arange(12).reshape(3, 4)[::-1].T.tolist()


def test_images_are_decoded_when_they_are_needed():
    asked = []

    def read(place):
        asked.append(place)
        return image((10 * place, 0, 0), 4, 4)

    images = ImageDataset(read, torch.arange(20))
    some = images.subset([17, 3]).subset([1])
    assert len(images) == 20 and some.targets.tolist() == [3] and not asked
    assert torch.equal(some.inputs, some.inputs) and set(asked) == {3}
    copy = pickle.loads(pickle.dumps(some))
    assert torch.equal(copy.inputs, some.inputs) and copy.targets.tolist() == [3]
    count = len(asked)
    assert torch.equal(images.inputs[3:4], some.inputs)
    assert torch.equal(images.subset([3]).inputs, some.inputs) and len(asked) > count
    assert len(images.subset([]).targets) == 0


@pytest.mark.parametrize("broken", [b"no image at all", None])
def test_damaged_images_are_named(divided, broken):
    path = divided / "train" / "green" / "03.png"
    path.write_bytes(path.read_bytes()[:300] if broken is None else broken)
    with pytest.raises(ValueError, match=r"green/03\.png cannot be read as an image \(.*remove it") as caught:
        _ = load_image_folder(str(divided), validation=0).train.inputs
    assert "\n" not in str(caught.value)


def test_more_than_8_bits_are_refused(divided):
    Image.fromarray(np.full((16, 16), 40_000, dtype=np.uint16)).save(divided / "train" / "red" / "00.png")
    with pytest.raises(ValueError, match=r"more than 8 bits per channel"):
        _ = load_image_folder(str(divided), validation=0).train.inputs


def test_other_layouts_are_refused(divided, tmp_path):
    with pytest.raises(FileNotFoundError, match="'image_folder' needs data_dir: a folder or zip file with"):
        load_splits("image_folder")
    with pytest.raises(FileNotFoundError, match="nowhere does not exist; set data_dir"):
        load_splits("image_folder", str(tmp_path / "nowhere"))
    (tmp_path / "text.zip").write_text("no zip file")
    with pytest.raises(ValueError, match="neither a folder nor a complete zip file"):
        load_splits("image_folder", str(tmp_path / "text.zip"))
    shutil.copytree(divided / "train" / "red", tmp_path / "one" / "red")
    with pytest.raises(ValueError, match="training images of 1 class; at least two are needed"):
        load_splits("image_folder", str(tmp_path / "one"))
    Path(tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="training images of no classes"):
        load_splits("image_folder", str(tmp_path / "empty"))
    shutil.copytree(divided / "test" / "red", divided / "test" / "violet")
    with pytest.raises(ValueError, match="test images of the class 'violet', but no training images of it"):
        load_splits("image_folder", str(divided))
    os.rename(divided / "test" / "violet", divided / "violet")
    with pytest.raises(ValueError, match="folder 'violet' beside its training images"):
        load_splits("image_folder", str(divided))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "number of pixels, 1 or more"),
        ({"size": "big"}, "number of pixels"),
        ({"colour": "green"}, "rgb or grey, got 'green'"),
        ({"validation": 40}, "Of 30 training examples, 40 cannot be held out"),
        ({"validation": -1}, "cannot be held out"),
        ({"hold_out": "first"}, "hold_out is one of last, last_of_class, random"),
    ],
)
def test_options_out_of_range(divided, options, message):
    with pytest.raises(ValueError, match=message):
        load_splits("image_folder", str(divided), **options)
