"""Data that would take the machine down: bombs, pipes, links that lead back, formats that run programs."""

import bz2
import gzip
import json
import os
import struct
import zipfile
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import refusals
from image_files import png, write_class_folders, zipped
from leaf import write_leaf
from tiny import tiny

from fedpart.data import image_listing, leaf_files, load_splits, load_torchvision
from fedpart.data.sets.table import table_files
from simulations.folders.data_files import listed_data

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\nshowpage\n%%EOF\n"


def huge_png(side):
    """Of black pixels of a bit, a few kilobytes whatever its side."""
    return png(side, 1, 0, bytes((side // 8 + 1) * side) if side < 10_000 else b"")


@pytest.fixture
def pictures(tmp_path):
    write_class_folders(tmp_path / "pictures", 4, odd=False)
    return tmp_path / "pictures"


def inputs(source, **options):
    return load_splits("image_folder", str(source), validation=0, test=1, **options).train.inputs


def test_images_beyond_a_limit(pictures, tmp_path):
    bomb, lying = tmp_path / "bomb.zip", tmp_path / "lying.zip"
    zipped(pictures, bomb)
    with zipfile.ZipFile(bomb, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("red/bomb.png", bytes(2**20))
        start = file.getinfo("red/bomb.png").header_offset
    content = bytearray(bomb.read_bytes())
    true = struct.pack("<I", 2**20)
    for at in (content.index(true, start), content.rindex(true)):
        content[at : at + 4] = struct.pack("<I", 1000)
    lying.write_bytes(content)
    (pictures / "red" / "00.png").write_bytes(huge_png(13_000))
    size = {"size": 16}
    refusals.check(
        [
            ("an entry", partial(inputs, bomb, limits={"file": 10**5}), "bomb.png .*limits.file"),
            ("entries", partial(inputs, bomb, limits={"total": 10**6}), "bomb.zip .*limits.total"),
            ("a header that lies", partial(inputs, lying), "bomb.png .*damaged in the zip file"),
            ("pixels", partial(inputs, pictures, **size), "00.png .*50,000,000 pixels; .*limits.p"),
            ("a name", partial(inputs, bomb, limits={"pixel": 1}), "no 'pixel': did you mean"),
            ("no mapping", partial(inputs, bomb, limits=5), "limits is a mapping .*, got 5"),
            ("no number", partial(inputs, bomb, limits={"file": "1"}), "limits.file is a whole"),
        ]
    )
    (pictures / "red" / "00.png").write_bytes(huge_png(1000))
    few, memory = {"pixels": 10**6 - 1}, {"total": 4 * 16 * 16 * 3 * 10}
    refusals.check(
        [
            ("a pixel", partial(inputs, pictures, limits=few, **size), "999,999 pixels; .*raise"),
            ("in memory", partial(inputs, pictures, limits=memory, **size), "memory .*s.total"),
        ]
    )
    assert inputs(pictures, limits={"pixels": 10**6}, **size).shape == (11, 3, 16, 16)


def sparse(file, size):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    os.truncate(file, size)


@pytest.mark.slow  # imports what reads them
def test_raw_files_beyond_a_limit_are_not_read(tmp_path, monkeypatch):
    size, rows = 2**31, []
    for name, file in {
        "mnist": "MNIST/raw/train-images-idx3-ubyte",
        "fashion_mnist": "FashionMNIST/raw/t10k-images-idx3-ubyte",
        "cifar10": "cifar-10-batches-py/data_batch_1",
        "svhn": "train_32x32.mat",
    }.items():
        sparse(tmp_path / name / file, size)
        load = partial(load_splits, name, str(tmp_path / name), download=False)
        rows.append((name, load, ValueError, r"bytes; if you trust it, raise data_options\.limits\.file"))
        more = partial(load, limits={"file": size - 1})
        rows.append((f"{name}, raised", more, ValueError, "than 2,147,483,647 bytes"))
    (tmp_path / "usps").mkdir()
    (tmp_path / "usps" / "usps.bz2").write_bytes(bz2.compress(bytes(2**21)))
    usps = partial(load_torchvision, str(tmp_path / "usps"), name="USPS", download=False)
    rows.append(("a packed one", partial(usps, limits={"file": 2**20}), ValueError, "usps.bz2 has more"))
    datasets = pytest.importorskip("datasets")
    info, table = SimpleNamespace(download_size=None, dataset_size=2**36), SimpleNamespace(nbytes=10**4)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: SimpleNamespace(info=info))
    rows.append(("hub", partial(load_splits, "hf:a/b"), ValueError, "hf:a/b has more .*limits.total"))
    refusals.check(rows)
    info.dataset_size = None
    loaded = {"train": SimpleNamespace(data=table)}
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: loaded)
    call = partial(load_splits, "hf:a/b", limits={"total": 10**4 - 1})
    refusals.check([("what has come", call, ValueError, "9,999 bytes; .*limits.total")])


def test_what_is_no_regular_file(pictures, tmp_path):
    os.mkfifo(pictures / "red" / "pipe.png")
    os.mkfifo(tmp_path / "data.zip")
    os.symlink("/dev/zero", pictures / "blue" / "zero.png")
    tables, leaf, folder = tmp_path / "tables", tmp_path / "leaf", tmp_path / "folder"
    for place in (tables, leaf / "train", folder):
        place.mkdir(parents=True)
    os.mkfifo(tables / "train.csv")
    os.mkfifo(leaf / "train" / "a.json")
    (folder / "train.parquet").mkdir()
    refusals.check(
        (what, call, f"{name} .*is no regular file but a folder, pipe, device or socket")
        for what, call, name in [
            ("images", partial(inputs, pictures), "(pipe|zero).png"),
            ("their listing", partial(image_listing, pictures), "(pipe|zero).png"),
            ("a zip file", partial(inputs, tmp_path / "data.zip"), "data.zip"),
            ("a table", partial(table_files, tables), "train.csv"),
            ("a folder for a table", partial(table_files, folder), "train.parquet"),
            ("LEAF", partial(leaf_files, leaf), "a.json"),
        ]
    )


@pytest.mark.slow  # imports what reads them
def test_links_that_lead_back_are_noticed_before_a_package_follows_them(pictures, tmp_path):
    for name in "ab":
        os.symlink("..", pictures / "red" / name)
    food = partial(load_torchvision, str(pictures), name="Food101", download=False)
    folder = partial(load_splits, "hf:imagefolder", str(pictures))
    refusals.check([("hf", folder, "one by a link"), ("torchvision", food, "one by a link")])
    for name in ("other", "packed", "zipped"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "other" / "train.csv")
    with gzip.open(tmp_path / "packed" / "train.csv", "wb") as file:
        file.write(bytes(2**21))
    with zipfile.ZipFile(tmp_path / "zipped" / "train.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("train.csv", bytes(2**21))
    few = {"limits": {"file": 2**20}}
    packed, bombs = (str(tmp_path / name) for name in ("packed", "zipped"))
    other, pipe = str(tmp_path / "other"), "train.csv is no regular file"
    refusals.check(
        [
            ("torchvision", partial(load_torchvision, other, name="KMNIST"), pipe),
            ("hf", partial(load_splits, "hf:csv", other), pipe),
            ("gzip", partial(load_splits, "hf:csv", packed, **few), "train.csv .*limits.file"),
            ("zip", partial(load_splits, "hf:csv", bombs, **few), "zip/train.csv .*limits.file"),
        ]
    )


@pytest.mark.slow  # imports what reads them
def test_pillow_opens_what_the_extensions_say_alone(pictures, monkeypatch, tmp_path):
    def ran(*given, **more):
        raise AssertionError("Ghostscript was called")

    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", ran)
    (pictures / "red" / "00.png").write_bytes(EPS)
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    cells = [{"bytes": EPS, "path": "a.png"}] * 4
    table = pyarrow.table({"image": cells, "label": [0, 1, 0, 1]})
    features = {"image": {"_type": "Image"}, "label": {"dtype": "int64", "_type": "Value"}}
    described = json.dumps({"info": {"features": features}})
    (tmp_path / "hub").mkdir()
    table = table.replace_schema_metadata({"huggingface": described})
    parquet.write_table(table, tmp_path / "hub" / "train.parquet")
    hub = partial(load_splits, "hf:parquet", str(tmp_path / "hub"), test=1, validation=1)
    one = "it is not an image in BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP"
    refusals.check([("a folder", partial(inputs, pictures), one), ("hf", lambda: hub().train.inputs, one)])
    for name in "ab":
        sign = tmp_path / "signs" / "gtsrb" / "GTSRB" / "Training" / name / "1.ppm"
        sign.parent.mkdir(parents=True)
        sign.write_bytes(EPS)
    with pytest.raises(ValueError, match=r"1\.ppm is not an image in BMP"):
        load_torchvision(str(tmp_path / "signs"), name="GTSRB", validation=1, download=False)
    food = tmp_path / "food" / "food-101"
    (food / "meta").mkdir(parents=True)
    for name in ("train", "test"):
        (food / "meta" / f"{name}.json").write_text('{"a": ["a/1"], "b": ["b/1"]}')
    for name in "ab":
        (food / "images" / name).mkdir(parents=True)
        (food / "images" / name / "1.jpg").write_bytes(EPS)
    with pytest.raises(ValueError, match=r"1\.jpg is not an image in BMP"):
        load_torchvision(str(tmp_path / "food"), name="Food101", validation=1, download=False)


def test_tables_beyond_a_limit(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    packed, text = tmp_path / "packed.parquet", tmp_path / "text.csv"
    zeros = pyarrow.table({"a": np.zeros(10**6), "y": np.arange(10**6) % 2})
    parquet.write_table(zeros, packed, compression="zstd")
    assert packed.stat().st_size < 10**6
    with text.open("wb") as file:
        file.write(b"a,y\n1,0\n2,1\n")
        file.truncate(2**40)  # of which the disk holds nothing
    for name in "ab":
        write_leaf(tmp_path, {name: ([[0.0]] * 100, [0, 1] * 50)}, name=name)
    (tmp_path / "deep" / "train").mkdir(parents=True)
    (tmp_path / "deep" / "train" / "a.json").write_text("[" * 10**5)
    config = tiny(data="table", data_dir=str(text), data_options={"target": "y"})
    parted = partial(load_splits, "leaf", str(tmp_path))
    loaded = partial(load_splits, "table", target="y")
    refusals.check(
        [
            ("packed", partial(loaded, str(packed), limits={"total": 10**7}), "packed.* raise .*total"),
            ("sparse", partial(loaded, str(text)), "text.csv has more than .* bytes; .*s.file"),
            ("sparse, in a run's list", partial(listed_data, config), "text.csv has more than"),
            ("a file of LEAF", partial(parted, limits={"file": 500}), "a.json .*limits.file"),
            ("files of LEAF", partial(parted, limits={"total": 1500}), "What is in .*s.total"),
            ("deep", partial(load_splits, "leaf", str(tmp_path / "deep")), "none of LEAF's files"),
        ]
    )
    assert len(parted(limits={"file": 2000, "total": 4000}).train) > 100
