"""Images sorted into a folder per class (torchvision's ImageFolder layout), in a folder or a zip file."""

from __future__ import annotations

import io
import os
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedpart.data.dataset import Splits
from fedpart.data.hold_out import HoldOut, divide
from fedpart.data.images import Colour, ImageDataset
from fedpart.data.sources import DATASETS

EXTENSIONS = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
PARTS = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid"),
    "test": ("test", "testing"),
}
_LAYOUT = "train/CLASS/image.jpg and test/CLASS/image.jpg, or CLASS/image.jpg alone"


@DATASETS.register("image_folder")
def load_image_folder(
    data_dir: str | None = None,
    *,
    size: int | None = None,
    colour: Colour = "rgb",
    validation: float = 0.1,
    test: float = 0.2,
    hold_out: HoldOut = "random",
    data_seed: int = 0,
) -> Splits:
    """A user's own images: ``train/CLASS/...`` and ``test/CLASS/...``, or ``CLASS/...`` alone.

    Classes are the folders' names in alphabetical order; images may lie in folders below them. A folder
    ``validation`` is taken as the validation set. What has no folder is held out from the training images:
    the test set first, then the validation set. Images are decoded when they are needed.

    Args:
        data_dir: the folder or the zip file; folders above these that contain nothing else do not matter.
        size, colour: see :func:`~fedpart.data.images.pixels`; with no size all images must have the same.
        validation, test: how many to hold out where there is no folder: a number, or a share below 1.
        hold_out: which ones, see :func:`~fedpart.data.hold_out.divide`.
        data_seed: of ``hold_out: random``.

    Returns:
        Splits of inputs [n, 3 or 1, h, w] float32 in [0, 1], no mean subtracted, and labels [n].

    Raises:
        FileNotFoundError: no ``data_dir``, or nothing is there.
        ValueError: another layout, a class without training images, or see ``divide`` and ``pixels``.
    """
    if data_dir is None:
        raise FileNotFoundError(
            f"The data set 'image_folder' needs data_dir: a folder or zip file with {_LAYOUT}."
        )
    root = Path(data_dir).expanduser()
    source = _source(root)
    parts = _parts(root, source.names)
    classes = sorted({label for label, _ in parts["train"]})
    loaded = {}
    for part, files in parts.items():
        unknown = sorted({label for label, _ in files} - set(classes))
        if unknown:
            raise ValueError(
                f"{root} has {part} images of the class {unknown[0]!r}, but no training images of it; add "
                f"some, or remove the class."
            )
        targets = torch.tensor([classes.index(label) for label, _ in files], dtype=torch.int64)
        loaded[part] = _images(source, [name for _, name in files], targets, size, colour)
    for number, (part, wanted) in enumerate((("test", test), ("validation", validation))):
        if not parts[part]:
            kept, out = divide(loaded["train"].targets, wanted, hold_out, data_seed, number)
            loaded |= {part: loaded["train"].subset(out), "train": loaded["train"].subset(kept)}
    return Splits(loaded["train"], loaded["validation"], loaded["test"], num_classes=len(classes))


def _images(
    source: _Folder | _Zip, names: Sequence[str], targets: torch.Tensor, size: int | None, colour: Colour
) -> Any:
    from PIL import Image

    def read(place: int) -> Any:
        return Image.open(io.BytesIO(source.read(names[place])))

    return ImageDataset(
        read, targets, size=size, colour=colour, name=lambda place: f"{source.root}/{names[place]}"
    )


def _parts(root: Path, names: list[str]) -> dict[str, list[tuple[str, str]]]:
    """(class, name) of the images of each part, sorted by both."""
    paths = [(tuple(name.split("/")), name) for name in names]
    while paths and all(len(path) > 2 for path, _ in paths) and len({path[0] for path, _ in paths}) == 1:
        paths = [(path[1:], name) for path, name in paths]
    top = {path[0] for path, _ in paths if len(path) > 1}
    found: dict[str, list[tuple[str, str]]] = {part: [] for part in PARTS}
    by_name = {alias: part for part, aliases in PARTS.items() for alias in aliases}
    if any(folder in top for folder in PARTS["train"]):
        odd = sorted(top - by_name.keys())
        if odd:
            raise ValueError(
                f"{root} has the folder {odd[0]!r} beside its training images; the layout is {_LAYOUT}."
            )
        for path, name in paths:
            if len(path) > 2:
                found[by_name[path[0]]].append((path[1], name))
    else:
        found["train"] = [(path[0], name) for path, name in paths if len(path) > 1]
    classes = len({label for label, _ in found["train"]})
    if classes < 2:
        raise ValueError(
            f"{root} has training images of {classes or 'no'} class{'' if classes == 1 else 'es'}; at least "
            f"two are needed, a folder each: {_LAYOUT} ({', '.join(EXTENSIONS)})."
        )
    return {part: sorted(files) for part, files in found.items()}


def _source(root: Path) -> _Folder | _Zip:
    if root.is_dir():
        return _Folder(root)
    if not root.exists():
        raise FileNotFoundError(
            f"There are no images: {root} does not exist; set data_dir to a folder or zip file with "
            f"{_LAYOUT}."
        )
    if not zipfile.is_zipfile(root):
        raise ValueError(f"{root} is neither a folder nor a complete zip file; set data_dir to one of them.")
    return _Zip(root)


def _is_image(name: str) -> bool:
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))
    return not hidden and name.lower().endswith(EXTENSIONS)


class _Folder:
    """Image files below a folder, by their path in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        found = (
            (Path(folder) / file).relative_to(root).as_posix()
            for folder, _, files in os.walk(root, followlinks=True)
            for file in files
        )
        self.names = [name for name in found if _is_image(name)]

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()


class _Zip:
    """Image files in a zip file, by their path in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._opened: tuple[int, zipfile.ZipFile] | None = None
        self.names = [name for name in self._file().namelist() if _is_image(name)]

    def read(self, name: str) -> bytes:
        try:
            return self._file().read(name)
        except zipfile.BadZipFile as error:
            raise ValueError(f"damaged in the zip file: {error}") from error

    def _file(self) -> zipfile.ZipFile:
        """Open in this process: a forked one must not share the place in the file."""
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = os.getpid(), zipfile.ZipFile(self.root)
            return self._opened[1]
