"""Images in a folder per class: layouts, sizes, the division, links, images of 16 bits."""

import io
import os
import pickle
import shutil
from functools import partial

import numpy as np
import pytest
import refusals
import torch
from image_files import COLOURS, image, png, write_class_folders, write_divided, zipped
from leaf import write_leaf
from PIL import Image

from fedpart.data import ImageDataset, image_listing, listing_digest, load_image_folder, load_splits
from fedpart.data.image_dataset import pixels
from fedpart.data.sets.table import table_files
from fedpart.data.transformed import rotated_splits


@pytest.fixture
def divided(tmp_path):
    return write_divided(tmp_path / "data")


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
    assert splits.classes == rotated_splits(splits, 0).classes == tuple(COLOURS)
    os.rename(divided / "test", divided / "val")
    parts = load_image_folder(str(divided), test=3).parts().values()
    assert [len(part) for part in parts] == [27, 12, 3], "a validation folder is the validation set"


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


def test_sizes_and_colours_of_which_the_shorter_side_is_scaled_and_the_middle_kept(tmp_path):
    write_class_folders(tmp_path / "data", 6)
    splits = load_image_folder(str(tmp_path / "data"), size=12)
    assert splits.train.inputs.shape[1:] == (3, 12, 12)
    grey = load_image_folder(str(tmp_path / "data"), size=12, colour="grey").train.inputs
    weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    assert torch.allclose(grey, (splits.train.inputs * weights).sum(1, keepdim=True), atol=2 / 255)
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


def test_images_may_lie_deeper_and_a_class_is_one_however_its_folder_is_written(divided, tmp_path):
    before = load_image_folder(str(divided)).train.inputs
    for path in sorted((divided / "train" / "red").iterdir()):
        (divided / "train" / "red" / "2020").mkdir(exist_ok=True)
        path.rename(divided / "train" / "red" / "2020" / path.name)
    (divided / "train" / "red" / "2021").mkdir()
    assert torch.equal(load_image_folder(str(divided)).train.inputs, before)
    other = tmp_path / "other"
    write_class_folders(other / "train", 4, odd=False)
    for part, name in (("train", "Z\u00fcrich"), ("test", "Zu\u0308rich")):
        (other / part / name).mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(other / part / name / "a.png")
    assert load_image_folder(str(other), validation=0).classes == ("Z\u00fcrich", "blue", "green", "red")


def small(depth, kind, channels):
    return png(4, depth, kind, (b"\0" + bytes(4 * channels * depth // 8)) * 4)


def read(content):
    return pixels(Image.open(io.BytesIO(content)), None, "rgb")


def test_more_than_8_bits_are_refused():
    files = {
        "RGB": small(16, 2, 3),
        "RGBA": small(16, 6, 4),
        "grey with alpha": small(16, 4, 2),
        "grey": small(16, 0, 1),
        "PPM of 65535": b"P6 4 4 65535\n" + bytes(96),
        "PPM of 1023": b"P6 4 4 1023\n" + bytes(96),
    }
    refusals.check((what, partial(read, file), "more than 8 bits") for what, file in files.items())


@pytest.mark.parametrize("kind, channels", [(2, 3), (6, 4), (0, 1), (4, 2)])
def test_8_bits_are_read(kind, channels):
    assert not read(small(8, kind, channels)).any()
    assert np.array_equal(read(b"P6 4 4 255\n" + bytes(range(48)))[0], np.arange(0, 48, 3).reshape(4, 4))


def test_what_a_link_would_count_twice(tmp_path):
    rows = []
    links = [("red/latest", "."), ("red/up", ".."), ("red/more", "../blue"), ("red/new.png", "00.png")]
    for i, (link, to) in enumerate(links):
        root = tmp_path / f"{i}"
        write_class_folders(root, 4, odd=False)
        load_image_folder(str(root))
        os.symlink(to, root / link)
        rows.append((link, partial(load_image_folder, str(root)), "one by a link; remove the link"))
    for i, (link, to) in enumerate([("red/a.png", "red/01.png"), ("blue/a.png", "red/01.png")]):
        root = tmp_path / f"hard{i}"
        write_class_folders(root, 4, odd=False)
        os.link(root / "red" / "00.png", tmp_path / f"{i}.png")  # elsewhere it counts nowhere
        load_image_folder(str(root))
        os.link(root / to, root / link)
        rows.append((f"a hard link {link}", partial(load_image_folder, str(root)), "one by a link"))
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "train.csv").write_text("a,b\n1,2\n")
    os.link(tmp_path / "h" / "train.csv", tmp_path / "h" / "test.csv")
    rows.append(("a table by a hard link", partial(table_files, tmp_path / "h"), "one by a link"))
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "train.csv").write_text("a,b\n1,2\n")
    os.symlink("train.csv", tmp_path / "t" / "test.csv")
    rows.append(("a table", partial(table_files, tmp_path / "t"), "one by a link"))
    refusals.check(rows)


def several(path, count=3, **options):
    frames = [image(colour, 16, 16, seed) for seed, colour in enumerate(COLOURS.values())][:count]
    frames[0].save(path, save_all=True, append_images=frames[1:], **options)


def test_a_file_with_several_pictures(divided, tmp_path):
    """Refused by its name; alone, and in the primary place of a camera's JPEG, a picture is read."""
    says = r"/red/many.{} cannot be read as an image \(it holds several pictures, .*save each in a file"
    rows = []
    for kind in ("tif", "tiff", "png", "webp", "gif"):
        for count in (1, 3):
            root = tmp_path / f"{kind}{count}"
            write_class_folders(root, 2, odd=False)
            several(root / "red" / f"many.{kind}", count)
            call = partial(lambda root: load_image_folder(str(root), validation=0, test=0).train.inputs, root)
            if count == 1:
                assert call().shape == (7, 3, 16, 16)
            else:
                rows += [(kind, call, says.format(kind))]
    packed = str(zipped(tmp_path / "gif3", tmp_path / "many.zip"))
    whole = partial(load_image_folder, packed, validation=0, test=0)
    rows.append(("zip", lambda: whole().train.inputs, "several pictures"))
    refusals.check(rows)
    several(tmp_path / "png1" / "red" / "camera.jpg", 2, format="MPO")
    image(COLOURS["red"], 16, 16).save(tmp_path / "png1" / "red" / "old.jfif", "jpeg")
    found = load_image_folder(str(tmp_path / "png1"), validation=0, test=0).train.inputs
    assert found.shape == (9, 3, 16, 16)


def test_images_that_are_not_read_and_parts_of_two_names(divided, tmp_path):
    for place in ("logo.svg", "train/map.heic", "train/red/.hidden.svg", "train/red/notes.txt"):
        (divided / place).write_bytes(b"beside the classes, or no image")
    load_image_folder(str(divided))
    for place in ("logo.png", "train/lost.png"):
        image(COLOURS["red"], 16, 16).save(divided / place)
    with pytest.warns(UserWarning, match=r"2 of \d+ images left out, .* around it: .*/logo\.png"):
        load_image_folder(str(divided))
    rows = []
    others = ["train/red/a.heic", "test/blue/B.AVIF", "train/red/deep/c.svg", "train/red/d.jp2"]
    for i, name in enumerate(others):
        root = tmp_path / f"{i}" / "data"
        write_class_folders(root / "train", 2, odd=False)
        write_class_folders(root / "test", 2, odd=False)
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"a picture")
        says = rf"{name} is in a format not read \(\.bmp, .*; save it as PNG, or remove it"
        rows.append((name, partial(load_image_folder, str(root)), says))
        packed = zipped(root, tmp_path / f"{i}.zip", "above")
        rows.append((f"{name} in a zip", partial(load_image_folder, str(packed)), f"above/{says}"))
    for one, other in (("validation", "val"), ("test", "testing"), ("train", "training")):
        root = tmp_path / other
        for part in {"train", one, other}:
            write_class_folders(root / part, 2, odd=False)
        says = f"has {one} and {other} for one part, {one}; move one"
        rows.append((other, partial(load_image_folder, str(root)), says))
        rows.append((f"listed {other}", partial(image_listing, str(root)), says))
    leaf = tmp_path / "leaf"
    for part in ("train", "test", "testing"):
        write_leaf(leaf, {"a": ([[1], [2]], [0, 1])}, part)
    rows.append(("LEAF", partial(load_splits, "leaf", str(leaf)), "has test and testing for one part, test"))
    refusals.check(rows)


def test_parts_are_known_in_any_case_and_train_is_a_class_beside_others(divided, tmp_path):
    small = load_image_folder(str(divided)).parts()
    assert all(len(part.inputs) for part in small.values())  # they are decoded
    os.rename(divided / "train", divided / "Training")
    os.rename(divided / "test", divided / "TEST")
    for name, part in load_image_folder(str(divided)).parts().items():
        assert torch.equal(part.inputs, small[name].inputs) and torch.equal(part.targets, small[name].targets)
    shutil.copytree(divided / "TEST", divided / "Testing")
    with pytest.raises(ValueError, match=r"has TEST and Testing for one part, test; move one away"):
        load_image_folder(str(divided))
    write_class_folders(tmp_path / "vehicles", 5, odd=False)
    os.rename(tmp_path / "vehicles" / "blue", tmp_path / "vehicles" / "Train")
    assert "Train" in load_image_folder(str(tmp_path / "vehicles")).classes
    (divided / "Testing" / "blue").rename(tmp_path / "blue")
    shutil.rmtree(divided / "Testing")
    (divided / "Meta" / "all").mkdir(parents=True)
    shutil.copy(next((divided / "Training" / "blue").iterdir()), divided / "Meta" / "all")
    with pytest.raises(ValueError, match="'Meta' beside its training images"):
        load_image_folder(str(divided))
    shutil.rmtree(divided / "Meta")
    shutil.rmtree(divided / "TEST")
    (divided / "Test").mkdir()
    shutil.copy(next((divided / "Training" / "blue").iterdir()), divided / "Test")
    with pytest.raises(ValueError, match=r"no readable images in .*Test"):
        load_image_folder(str(divided))
