"""Image classification data sets of torchvision, by name."""

import inspect
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpart.data.dataset import Splits
from fedpart.data.image_dataset import Colour, ImageDataset
from fedpart.data.loading import DATASETS, Loader
from fedpart.data.reading import FORMATS, IMAGE_BYTES, Limits, check_files, download_files, regular_files
from fedpart.data.sets.image_folder import load_image_folder
from fedpart.data.splitting.hold_out import HoldOut, divide
from fedpart.registry import nearest

NAMES = {"fashion_mnist": "FashionMNIST", "kmnist": "KMNIST", "cifar100": "CIFAR100", "svhn": "SVHN"}
"""Data sets with a name of their own here; every other one is ``data: torchvision`` with its class's name."""


@DATASETS.register("torchvision")
def load_torchvision(
    data_dir: str | None = None, *, name: str = "", options: Mapping[str, Any] | None = None,
    size: int | None = None, colour: Colour | None = None, validation: float = 0.1,
    hold_out: HoldOut = "last_of_class", download: bool = True, limits: Mapping[str, int] | None = None,
    data_seed: int = 0,
) -> Splits:  # fmt: skip
    """Any image classification data set of ``torchvision.datasets`` that has training and test images.

    Inputs are [n, 3 or 1, h, w] float32 in [0, 1], no mean subtracted, labels [n].

    Args:
        data_dir: torchvision's ``root``: where the files are, or are to be.
        name: of the class in ``torchvision.datasets``, e.g. ``EMNIST``.
        options: further arguments of that class, e.g. ``{split: letters}``.
        size, colour: see :func:`.pixels`; no colour: grey if the first image is.
        validation, hold_out, download, limits, data_seed: see :data:`.Loader`.
    """
    most = Limits.of(limits, IMAGE_BYTES)
    kind = torchvision_class(name)
    if data_dir is None:
        fault = f"{name} needs data_dir"
        raise FileNotFoundError(f"{fault}: the folder with torchvision's files, or one to download into.")
    root = Path(data_dir).expanduser()
    check_files(_raw_files(kind, name, root), Limits.of(limits), str(root))
    source = _open(kind, name, root, "train", options or {}, download, most)
    train = _images(source, name, "train", size, colour, most)
    other = _open(kind, name, root, "test", options or {}, download, most)
    test = _images(other, name, "test", size, colour, most)
    kept, out = divide(train.targets, validation, hold_out, data_seed)
    classes = 1 + max(int(part.targets.max()) for part in (train, test))
    names = tuple(getattr(source, "classes", ()))
    if len(names) != classes or not all(isinstance(each, str) for each in names):
        names = ()
    return Splits(train.subset(kept), train.subset(out), test, num_classes=classes, classes=names)


for _name, _class in NAMES.items():
    _load: Loader = partial(load_torchvision, name=_class)
    DATASETS.register(_name)(_load)


def torchvision_class(name: str) -> Any:
    """A data set of torchvision by its name."""
    try:
        from torchvision import datasets  # whose import takes longer than a client's round
    except ImportError as error:
        fault = f"{name or 'The data set'} is read with torchvision"
        raise ImportError(f"{fault}: pip install torchvision.") from error
    if not name or name not in datasets.__all__:
        remedy = f"{nearest(name, datasets.__all__)} Name one with data_options: {{name: ...}}"
        raise ValueError(f"torchvision has no data set {name!r}: {remedy}.")
    return getattr(datasets, name)


def _raw_files(kind: Any, name: str, root: Path) -> list[str]:
    """The files that torchvision reads as a whole, of those that are there."""
    folders = [root / name / "raw", *([root / kind.base_folder] if hasattr(kind, "base_folder") else [])]
    files = [file for folder in folders for file in folder.glob("*") if file.suffix not in (".gz", ".zip")]
    files += [root / entry[1] for entry in getattr(kind, "split_list", {}).values()]
    return [str(file) for file in files if file.exists() and not file.name.startswith("unlabeled")]


def _open(
    kind: Any, name: str, root: Path, part: str, options: Mapping[str, Any], download: bool, limits: Limits
) -> Any:
    """torchvision's data set of a part, ``train`` or ``test``, which opens no file but within limits."""
    parameters = {key for base in kind.__mro__ for key in inspect.signature(base.__init__).parameters}
    takes = inspect.signature(kind.__init__).parameters
    by_loader = "loader" in takes or ("loader" in parameters and "kwargs" in takes)  # of images in files
    regular_files(root, once=by_loader)
    if by_loader:
        options = {**options}
        options.setdefault("loader", lambda path: limits.image(limits.read(path), str(path)).convert("RGB"))
    if "train" in parameters:  # EMNIST hands it on, and splits by something else
        options = {**options, "train": part == "train"}
    elif "split" in parameters:
        options = {**options, "split": part}
    else:
        remedy = "make an image_folder of it"
        raise ValueError(f"torchvision's {name} is not divided into training and test images; {remedy}.")
    try:
        return kind(str(root), **options)
    except (RuntimeError, FileNotFoundError) as error:
        absence = f"{name} is not in {root}"
        remedy = "set data_dir to torchvision's folder of files, or run once where a network exists."
        if not (download and "download" in parameters):
            raise FileNotFoundError(f"{absence}, and is not downloaded; {remedy}") from error
        folders = (root / name / "raw", root / name, root)
        fetch = partial(kind, str(root), download=True, **options)
        return download_files(fetch, name, folders, absence, remedy)


def _images(
    source: Any, name: str, part: str, size: int | None, colour: Colour | None, limits: Limits
) -> ImageDataset:
    for listed in vars(source).values():  # GTSRB and others open by themselves what they list
        for entry in listed if isinstance(listed, list) and "loader" not in vars(source) else ():
            path = str(entry[0] if isinstance(entry, tuple) else entry)
            if path.lower().endswith(tuple(FORMATS)) and os.path.exists(path):
                limits.image(path, path).close()
    if not len(source) or not hasattr(source[0][0], "convert"):
        raise ValueError(f"torchvision's {name} does not hold labelled images.")
    if colour is None:
        colour = "grey" if source[0][0].mode == "L" else "rgb"
    label = f"{part} image {{}} of {name}".format
    known: Any = {"size": size, "colour": colour, "name": label, "limits": limits}
    return ImageDataset(lambda place: source[place][0], _labels(source), **known)


def _labels(source: Any) -> Tensor:
    """[n] int64: as the data set holds them, or one by one."""
    for attribute in ("targets", "labels", "_labels"):
        labels = getattr(source, attribute, None)
        if labels is not None and len(labels) == len(source):
            return torch.as_tensor(labels, dtype=torch.int64)
    return torch.tensor([int(source[place][1]) for place in range(len(source))], dtype=torch.int64)


VALIDATION = 5_000


@DATASETS.register("cifar10")
def load_cifar10(
    data_dir: str | None = None, *, size: int = 32, validation: float = VALIDATION,
    hold_out: HoldOut = "last_of_class", download: bool = True, limits: Mapping[str, int] | None = None,
    data_seed: int = 0,
) -> Splits:  # fmt: skip
    """CIFAR-10 (Krizhevsky 2009): 45,000 images for training, 5,000 for validation, 10,000 for test.

    Validation is the last 500 training images of each class; the paper does not say which form it. Inputs are
    [n, 3, size, size] float32 in [0, 1], no mean subtracted, labels [n] in the order of the classes' names.

    Args:
        data_dir: torchvision's folder, with ``cifar-10-batches-py/`` in it (which is looked for first, and
            downloaded into it if nothing is there); or a folder or zip file with ``train/CLASS/`` and
            ``test/CLASS/``; or a folder that contains one of these, called ``cifar10...``.
        size: pixels of a side: smaller images make faster networks; see :func:`.pixels`.
        validation, hold_out, download, limits, data_seed: see :data:`.Loader`.
    """
    choice: Any = {"size": size, "validation": validation, "hold_out": hold_out}
    choice |= {"limits": limits, "data_seed": data_seed}
    images = None if data_dir is None else _image_folder(Path(data_dir).expanduser())
    if images is None:
        return load_torchvision(data_dir, name="CIFAR10", download=download, **choice)
    splits = load_image_folder(str(images), test=0, **choice)
    sizes = [len(splits.train) + len(splits.validation), len(splits.test)]
    if splits.num_classes != 10 or sizes != [50_000, 10_000]:
        fault = f"{images} is not CIFAR-10: it has {splits.num_classes} classes, {sizes[0]} training and"
        raise ValueError(f"{fault} {sizes[1]} test images; use data: image_folder for images of your own.")
    return splits


def _image_folder(root: Path) -> Path | None:
    """Where images lie in folders, or should in a zip file; None: nowhere, or torchvision's are there."""
    named_zip = root.suffix.lower() == ".zip" and not root.is_dir()  # which need not exist
    if named_zip or root.is_file() or (root / "train").is_dir():
        return root
    if (root / "cifar-10-batches-py").is_dir():
        return None
    named = sorted(root.glob("[cC][iI][fF][aA][rR]10*")) if root.is_dir() else []
    return next((path for path in named if path.suffix == ".zip" or (path / "train").is_dir()), None)
