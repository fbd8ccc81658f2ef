"""What the loaders of images, of tables and of LEAF's files refuse."""

import math
import re
import shutil
import struct
import tempfile
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import refusals
from image_files import write_class_folders, write_divided, zipped
from leaf import write_leaf
from PIL import Image
from test_natural import TEXT as PEOPLE
from test_natural import load as table

from fedpart.data import load_image_folder, load_mnist, load_splits
from fedpart.data.columns import numbers_of
from fedpart.data.sets.table import table_files
from fedpart.data.sets.torchvision_sets import load_cifar10


@pytest.fixture
def new(tmp_path):
    return lambda: Path(tempfile.mkdtemp(dir=tmp_path))


@pytest.fixture
def divided(new):
    first = write_divided(new())
    return lambda: shutil.copytree(first, new() / "data")


def images(folder, **options):
    return lambda: load_image_folder(str(folder), validation=0, **options).train.inputs


def test_images_that_cannot_be_read(divided, new):
    name = "train/green/03.png"
    rows = []
    for content, reason in (
        (lambda good: b"no image at all", "not an image"),
        (lambda good: good[:300], "truncated"),
        (lambda good: b"P6 65536 65536 255 ", "more than 50,000,000 pixels; .*limits.pixels"),
    ):
        folder = divided()
        (folder / name).write_bytes(content((folder / name).read_bytes()))
        rows.append((folder, reason))
    good = divided()
    with zipfile.ZipFile(good / "data.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(good.rglob("*.png")):
            file.write(path, path.relative_to(good))
        entry, directory = file.getinfo(name), file.start_dir
    whole = (good / "data.zip").read_bytes()
    start = entry.header_offset + 30 + len(name)
    central = whole.index(name.encode(), directory) - 46

    def damaged(at, bits):
        path = new() / "data.zip"
        path.write_bytes(whole[:at] + bits + whole[at + len(bits) :])
        return path

    rows += [
        (damaged(start, b"\xff" * 40), "damaged in the zip file: Error -3 while decompressing"),
        (damaged(start + entry.compress_size - 3, b"\x00"), "damaged in the zip file"),
        (damaged(entry.header_offset, b"XXXX"), "damaged in the zip file: Bad magic number"),
        (damaged(central + 8, b"\x01"), f"unpack the zip file: File '{name}' is encrypted"),
        (damaged(central + 10, b"\x63"), "unpack the zip file: That compression method is not supported"),
    ]
    sentence = r"^(?!.* at 0x).*green/03\.png cannot be read as an image \(.*{}.*remove it"
    refusals.check(
        (f"{number}: {reason}", images(source), sentence.format(reason))
        for number, (source, reason) in enumerate(rows)
    )
    torn = damaged(directory, b"XXXX")
    refusals.check([("a torn zip file", images(torn), "neither a folder nor a complete zip")])


def test_images_that_do_not_fit(divided, new):
    odd, deep = new() / "data", divided()
    write_class_folders(odd, 6)
    Image.fromarray(np.full((16, 16), 40_000, dtype=np.uint16)).save(deep / "train" / "red" / "00.png")
    sizes = r"Images differ in size: .*png is \d+x\d+.* data_options: \{size"
    wide = ("images of 16 bits", images(deep), "more than 8 bits per channel")
    refusals.check([("images of several sizes", images(odd), sizes), wide])


def test_classes_and_parts_without_images(divided, new):
    rows = []
    for folder in ("train/owl", "test/owl", "owl"):
        for in_zip in (False, True):
            for names in ((), ("map.txt",), ("notes.txt", ".hidden.png")):
                root = divided() if "/" in folder else divided() / "test"
                load_image_folder(str(root))
                (root / folder).mkdir()
                for name in names:
                    Image.new("RGB", (4, 4)).save(root / folder / name, "gif")
                source, place = root, f"{root}/{folder}"
                if in_zip:
                    source = zipped(root, new() / "data.zip", "above")
                    place = f"{source}/above/{folder}"
                    with zipfile.ZipFile(source, "a") as file:
                        file.mkdir(f"above/{folder}")
                rows.append((f"{folder} {names} {in_zip}", source, rf"{re.escape(place)} \(\.bmp, .*remove"))
    empty = divided()
    shutil.rmtree(empty / "test")
    (empty / "test").mkdir()
    rows.append(("an empty part", empty, r".*/test \("))
    refusals.check((what, images(source), f"no readable images in {says}") for what, source, says in rows)
    clients = new()
    for client in "ab":
        write_class_folders(clients / client, 2, odd=False)
    (clients / "c" / "red").mkdir(parents=True)
    says = "no readable images in .*/c "
    refusals.check([("a client without images", images(clients, clients=True), says)])


def test_folders_of_images_in_another_layout(divided, new, tmp_path):
    text, single, odd, beside = new() / "text.zip", new(), divided(), divided()
    text.write_text("no zip file")
    shutil.copytree(odd / "train" / "red", single / "red")
    shutil.copytree(odd / "test" / "red", odd / "test" / "violet")
    shutil.copytree(beside / "test" / "red", beside / "violet")
    violet = "test images of the class 'violet', but no training images of it"
    hold_out = "hold_out is one of last, last_of_class, random"
    refusals.check(
        (what, partial(load_splits, "image_folder", folder and str(folder), **options), error, says)
        for what, folder, options, error, says in [
            ("no folder", None, {}, FileNotFoundError, "'image_folder' needs data_dir: a folder or zip file"),
            ("nowhere", tmp_path / "no", {}, FileNotFoundError, "no does not exist; set data_dir"),
            ("a text", text, {}, ValueError, "neither a folder nor a complete zip file"),
            ("one class", single, {}, ValueError, "training images of 1 class; at least two are needed"),
            ("an empty folder", new(), {}, ValueError, "training images of no classes"),
            ("a class in test/ alone", odd, {}, ValueError, violet),
            ("a class beside train/", beside, {}, ValueError, "folder 'violet' beside its training images"),
            ("no size", divided(), {"size": 0}, ValueError, "number of pixels, 1 or more"),
            ("a size in words", divided(), {"size": "big"}, ValueError, "number of pixels"),
            ("one channel", divided(), {"colour": "green"}, ValueError, "rgb or grey, got 'green'"),
            ("too many", divided(), {"validation": 40}, ValueError, "Of 30 training examples, 40 cannot be"),
            ("fewer than none", divided(), {"validation": -1}, ValueError, "cannot be held out"),
            ("first", divided(), {"hold_out": "first"}, ValueError, hold_out),
        ]
    )
    coloured = str(divided())
    cifar = "is not CIFAR-10: it has 3 classes, .* use data: image_folder"
    refusals.check([("as CIFAR-10", lambda: load_cifar10(coloured, validation=1), cifar)])


def idx(*shape):
    return struct.pack(f">{1 + len(shape)}I", 0x0800 + len(shape), *shape) + bytes(math.prod(shape))


def test_mnist_files(new, tmp_path):
    def mnist(part=None, content=b""):
        """A folder with 5 images in both parts; one file has another content, or is missing if it is None."""
        raw = new() / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for name in ("train", "t10k"):
            (raw / f"{name}-images-idx3-ubyte").write_bytes(idx(5, 28, 28))
            (raw / f"{name}-labels-idx1-ubyte").write_bytes(idx(5))
        if part is not None:
            file = next(raw.glob(f"{part}*"))
            file.unlink() if content is None else file.write_bytes(content)
        return str(raw.parents[1])

    nowhere = str(tmp_path / "nowhere")
    cut = "train-images-idx3-ubyte is truncated: .*delete it and let it be downloaded"
    refusals.check(
        (what, partial(load_mnist, folder, download=False), *error, says)
        for what, folder, *error, says in [
            ("no folder", None, FileNotFoundError, "MNIST needs data_dir"),
            ("nowhere", nowhere, FileNotFoundError, "nowhere does not exist, .* set data_dir to the folder"),
            ("a lack", mnist("t10k-l", None), FileNotFoundError, "no t10k-labels-idx1-ubyte, .* set data"),
            *((f"{n} bytes", mnist("train-i", idx(5, 28, 28)[:n]), cut) for n in (0, 7, 16, 500)),
            ("a byte more", mnist("t10k-l", idx(5) + b"\0"), "longer than its header says"),
            ("a web page", mnist("t10k-l", b"<html>not found</html>"), "not the IDX file that"),
            ("a label less", mnist("t10k-l", idx(4)), "5 images but 4 labels in the test files"),
            ("few images", mnist(), "holds 5 images"),
        ]
    )


def written(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file.parent


def test_tables(new):
    def people(before="", after=""):
        text = PEOPLE.replace(before, after, 1) if before else PEOPLE
        return written(new() / "people.csv", text) / "people.csv"

    unused = {"ignore": ["age", "height", "ward", "id"]}
    heights = {"target": "height", "ignore": ["id", "ill"]}
    words = written(new() / "people.csv", "hospital,age,ill\nnorth,1,no\nsouth,2,yes\n")
    unseen = written(new() / "train.csv", "a,ill\n1,no\n2,yes\n")
    written(unseen / "test.csv", "a,ill\n1,no\n2,maybe\n")
    two = written(new() / "a.csv", "a,ill\n1,2\n")
    written(two / "b.csv", "a,ill\n1,2\n")
    text = written(new() / "c.txt", "") / "c.txt"
    tables = [
        ("another target", people(), {"target": "sick"}, "has no column 'sick'"),
        ("another client", people(), {"client": "wards"}, "did you mean 'ward'"),
        ("a word", people("22,", "old,"), {}, "Row 3 of .*people.csv: .* 'age' is 'old', .* no finite n"),
        ("an empty cell", people("22,", ","), {}, "Row 3 .* 'age' is empty"),
        ("no client", people(",9,x2\n", ",,x2\n"), {"client": "ward"}, "Row 3 .* 'ward' is empty"),
        ("a cell more", people("22,", "22,22,"), {}, "Line 4 .* has 6 cells, but the first line names 5"),
        ("a column twice", people("height", "age"), {}, "two columns 'age'"),
        ("no inputs", people(), unused, "no column for the inputs"),
        ("another delimiter", people(), {"delimiter": ";"}, "divided by ',', and not ';'"),
        ("numbers as classes", people(), heights, r"Row 1 .*'1.5' as its 'height'.*set likelihood: gaussian"),
        ("words", words, {"ignore": []}, r"'hospital' .* holds no numbers.*'north': .*\{client: hospital\}"),
        ("a new class", unseen, {"ignore": []}, "Row 2 of .*test.csv has .* 'maybe', which no training"),
        ("two tables", two, {}, "None of the 2 tables"),
        ("a text", text, {}, "neither a CSV nor a Parquet file"),
    ]
    refusals.check(
        (what, partial(table, path, **options), rf"^(?!(.*\. ){{2}}).*{says}")
        for what, path, options, says in tables
    )
    again = written(new() / "test.csv", PEOPLE)
    written(again / "train.csv", PEOPLE)
    assert table_files(again).keys() == {"train", "test"}
    written(again / "Testing.csv", PEOPLE)
    dates = {"when": np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]")}
    no_date = "'when' .* no numbers, but such as '2020-01-01'"
    twice = "has Testing.csv and test.csv for one part, test; move one away"
    refusals.check(
        [
            ("no table", partial(table, new()), FileNotFoundError, "There is no table at"),
            ("two files for a part", lambda: table_files(again), twice),
            ("dates", lambda: numbers_of(dates["when"], "when", "a.parquet"), no_date),
        ]
    )


def test_files_that_are_not_as_leafs(new):
    def leaf(x, y):
        return write_leaf(new(), {"f1": (x, y)})

    unfilled = r"4 numbers, which do not fill the shape \[1, 3, 3\]"
    texts = {"no users": "{}", "no data": '{"users": ["a"]}', "digits": f'{{"users": [{"9" * 5000}]}}'}
    others = {what: written(new() / "train" / "all.json", text).parent for what, text in texts.items()}
    no_leaf = r"all\.json is none of LEAF's files \(.*\)"
    refusals.check(
        (what, partial(load_splits, "leaf", str(folder), **options), error, says)
        for what, folder, options, error, says in [
            ("a user without examples", leaf([], []), {}, ValueError, "user 'f1' has no examples"),
            ("more y than x", leaf([[1.0]], [1, 2]), {}, ValueError, "1 x and 2 y"),
            ("words", leaf(["a word"], [1]), {}, ValueError, "x are no numbers in one shape"),
            ("a shape", leaf([[0.1] * 4], [4]), {"shape": [1, 3, 3]}, ValueError, unfilled),
            ("no users", others["no users"], {}, ValueError, "there is no 'users'"),
            *((what, folder, {}, ValueError, no_leaf) for what, folder in [*others.items()][1:]),
            ("no files", new(), {}, FileNotFoundError, "no files of LEAF"),
        ]
    )
