"""Images in a folder per class: layouts, sizes, the division, what is refused."""

import os
import pickle
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import COLOURS, image, write_class_folders, zipped
from PIL import Image

from fedpart.data import (
    ImageDataset,
    Splits,
    image_listing,
    listing_digest,
    load_image_folder,
    load_splits,
    rotated_splits,
)
from fedpart.data.images.image_dataset import pixels


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


def test_classes_are_called_as_their_folders(divided):
    splits = load_image_folder(str(divided))
    assert splits.classes == rotated_splits(splits, 0).classes == tuple(COLOURS)
    with pytest.raises(ValueError, match="3 names for 2 classes"):
        Splits(splits.test.subset([0]), splits.test.subset([0]), splits.test, 2, splits.classes)


def test_a_listing_tells_whether_images_have_changed(divided, tmp_path):
    listing = image_listing(str(divided))
    assert sorted(listing) == [f"{part}/{label}" for part in ("test", "train") for label in COLOURS]
    path = divided / "train" / "red" / "03.png"
    assert len(listing["train/red"]) == 10 and listing["train/red"]["03.png"] == path.stat().st_size
    assert image_listing(zipped(divided, tmp_path / "data.zip", "some/folder")) == listing
    red = listing["train/red"]
    assert listing_digest(dict(reversed(red.items()))) == listing_digest(red)
    assert len({listing_digest(files) for files in listing.values()}) == 6
    before = listing_digest(red)
    path.write_bytes(path.read_bytes() + b"0")
    longer = listing_digest(image_listing(divided)["train/red"])
    path.rename(path.with_name("99.png"))
    assert len({before, longer, listing_digest(image_listing(divided)["train/red"])}) == 3
    assert list(image_listing(divided / "test")) == list(COLOURS)


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


def refusal(source):
    with pytest.raises(ValueError, match=r"green/03\.png cannot be read as an image \(.*remove it") as caught:
        _ = load_image_folder(str(source), validation=0).train.inputs
    assert "\n" not in str(caught.value) and " at 0x" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda good: b"no image at all", "not an image"),
        (lambda good: good[:300], "truncated"),
        (lambda good: b"P6 65536 65536 255 ", "exceeds limit"),
    ],
)
def test_damaged_images_are_named(divided, damage, reason):
    path = divided / "train" / "green" / "03.png"
    path.write_bytes(damage(path.read_bytes()))
    assert reason in refusal(divided)


def test_damaged_zip_files_are_refused_in_a_sentence(divided, tmp_path):
    name = "train/green/03.png"
    with zipfile.ZipFile(tmp_path / "data.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for other in sorted(divided.rglob("*.png")):
            file.write(other, other.relative_to(divided))
        entry, directory = file.getinfo(name), file.start_dir
    whole = (tmp_path / "data.zip").read_bytes()
    start = entry.header_offset + 30 + len(name)
    central = whole.index(name.encode(), directory) - 46
    for at, bits, reason in (
        (start, b"\xff" * 40, "damaged in the zip file: Error -3 while decompressing"),
        (start + entry.compress_size - 3, b"\x00", "damaged in the zip file"),
        (entry.header_offset, b"XXXX", "damaged in the zip file: Bad magic number"),
        (central + 8, b"\x01", f"unpack the zip file: File '{name}' is encrypted"),
        (central + 10, b"\x63", "unpack the zip file: That compression method is not supported"),
    ):
        (tmp_path / "data.zip").write_bytes(whole[:at] + bits + whole[at + len(bits) :])
        assert reason in refusal(tmp_path / "data.zip")
    (tmp_path / "data.zip").write_bytes(whole[:directory] + b"XXXX" + whole[directory + 4 :])
    with pytest.raises(ValueError, match="neither a folder nor a complete zip file"):
        load_image_folder(str(tmp_path / "data.zip"))


@pytest.mark.parametrize("folder", ["train/owl", "test/owl", "owl"])
@pytest.mark.parametrize("zip_it", [False, True])
@pytest.mark.parametrize("holds", [(), ("moving.gif",), ("notes.txt", ".hidden.png")])
def test_a_class_without_readable_images_is_refused(divided, tmp_path, folder, zip_it, holds):
    root = divided if "/" in folder else divided / "test"
    load_image_folder(str(root))
    (root / folder).mkdir()
    for name in holds:
        Image.new("RGB", (4, 4)).save(root / folder / name, "gif")
    source, place = root, f"{root}/{folder}"
    if zip_it:
        source = zipped(root, tmp_path / "data.zip", "above")
        place = f"{source}/above/{folder}"
        with zipfile.ZipFile(source, "a") as file:
            file.mkdir(f"above/{folder}")
    with pytest.raises(ValueError, match=rf"no readable images in {re.escape(place)} \(\.bmp, .*remove"):
        load_image_folder(str(source))


def test_an_empty_part_is_not_held_out_without_a_word(divided):
    shutil.rmtree(divided / "test")
    (divided / "test").mkdir()
    with pytest.raises(ValueError, match=r"no readable images in .*/test \("):
        load_image_folder(str(divided))


def test_images_may_lie_deeper_in_a_class(divided):
    before = load_image_folder(str(divided)).train.inputs
    for path in sorted((divided / "train" / "red").iterdir()):
        (divided / "train" / "red" / "2020").mkdir(exist_ok=True)
        path.rename(divided / "train" / "red" / "2020" / path.name)
    (divided / "train" / "red" / "2021").mkdir()
    assert torch.equal(load_image_folder(str(divided)).train.inputs, before)


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
