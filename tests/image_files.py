"""Small image folders for tests: every class has a colour of its own."""

import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"blue": (20, 40, 220), "green": (30, 200, 60), "red": (230, 30, 40)}


def image(colour, width, height, seed=0):
    """[height, width, 3] noise around a colour."""
    noise = np.random.default_rng(seed).normal(0, 20, (height, width, 3))
    return Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8))


def write_class_folders(root: Path, per_class: int, odd: bool = True) -> None:
    """``root/CLASS/NN.png`` (or .jpg): sizes differ if they are to be ``odd``, else all are 16x16."""
    for label, colour in COLOURS.items():
        folder = root / label
        folder.mkdir(parents=True)
        for i in range(per_class):
            seed = zlib.crc32(f"{root.name} {label} {i}".encode())
            width, height = (9 + seed % 31, 9 + seed % 29) if odd else (16, 16)
            image(colour, width, height, seed).save(folder / f"{i:02}.{'jpg' if odd and i % 2 else 'png'}")


def write_divided(root: Path) -> Path:
    """``root/train`` with 10 images of each of three classes, ``root/test`` with 4, all 16x16."""
    write_class_folders(root / "train", 10, odd=False)
    write_class_folders(root / "test", 4, odd=False)
    return root


def zipped(folder: Path, target: Path, above: str = "") -> Path:
    """The files of a folder as a zip file, under a folder ``above`` them."""
    with zipfile.ZipFile(target, "w") as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, Path(above) / path.relative_to(folder))
    return target


def png(side: int, depth: int, kind: int, content: bytes) -> bytes:
    """A PNG of so many pixels in both directions, by the standard's letter."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    head = struct.pack(">IIBBBBB", side, side, depth, kind, 0, 0, 0)
    chunks = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(content, 9)), chunk(b"IEND", b"")
    return b"".join((b"\x89PNG\r\n\x1a\n", *chunks))
