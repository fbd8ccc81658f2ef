"""Handwritten digits: MNIST (LeCun et al. 1998) in torchvision's layout; scikit-learn's, which are there."""

import importlib.util
import math
import os
import struct
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fedpart.data.dataset import Dataset, Splits
from fedpart.data.loading import DATASETS
from fedpart.data.reading import Limits, check_files, download_files
from fedpart.data.sets.torchvision_sets import torchvision_class
from fedpart.data.splitting.hold_out import HoldOut, divide
from fedpart.randomness.streams import generator

VALIDATION = 10_000
"""Images of the original training file that form the validation set."""

_IMAGES, _LABELS = 0x0803, 0x0801  # IDX: unsigned bytes in three dimensions, in one
_FILES = {
    "train-images-idx3-ubyte": _IMAGES,
    "train-labels-idx1-ubyte": _LABELS,
    "t10k-images-idx3-ubyte": _IMAGES,
    "t10k-labels-idx1-ubyte": _LABELS,
}
_REMEDY = (
    "set data_dir to the folder that contains MNIST/raw/ with the four uncompressed files, "
    "or run once where a network exists to let torchvision download them."
)


@DATASETS.register("digits")
def load_digits(data_dir: str | None = None) -> Splits:
    """1,797 handwritten digits (UCI optical recognition, 8x8, by 13 writers), resized bilinearly to 28x28.

    Shuffled once in an order that depends on no seed of the experiment, for the file is ordered by writer;
    then 1,297 for training, 250 for validation, 250 for test: inputs [n, 1, 28, 28] float32 in [0, 1], labels
    [n]."""
    package = importlib.util.find_spec("sklearn")  # whose import takes longer than a client's round
    if package is None or package.origin is None:
        raise ImportError("The data set 'digits' comes with scikit-learn: pip install scikit-learn.")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    # [1797, 64 values and a label]
    table = torch.as_tensor(np.loadtxt(file, delimiter=",", dtype=np.int64))
    images = table[:, :64].to(torch.float32).reshape(-1, 1, 8, 8) / 16
    images = functional.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    whole = Dataset(images, table[:, 64])
    order = generator(0, "data.digits.order").permutation(len(whole))
    train, validation, test = order[:-500], order[-500:-250], order[-250:]
    return Splits(whole.subset(train), whole.subset(validation), whole.subset(test), num_classes=10)


@DATASETS.register("mnist")
def load_mnist(
    data_dir: str | None = None, *, validation: float = VALIDATION, hold_out: HoldOut = "last",
    download: bool = True, limits: Mapping[str, int] | None = None, data_seed: int = 0,
) -> Splits:  # fmt: skip
    """MNIST: 50,000 images for training, 10,000 for validation, 10,000 for test.

    Validation is the last 10,000 images of the original training file; the paper does not say which form it.
    Inputs are [n, 1, 28, 28] float32 in [0, 1], no mean subtracted, labels [n] in 0..9.

    Args:
        data_dir: folder that contains (or shall contain) ``MNIST/raw/`` with the four uncompressed IDX files.
        validation, hold_out, download, limits, data_seed: see :data:`.Loader`.
    """
    if data_dir is None:
        fault = "MNIST needs data_dir: the folder that contains MNIST/raw/"
        raise FileNotFoundError(f"{fault}, or an empty one to download into.")
    root = Path(data_dir).expanduser()
    raw = root / "MNIST" / "raw"
    files = filter(os.path.exists, (raw / name for name in _FILES))
    check_files(files, Limits.of(limits), f"What is in {raw}")
    missing = [name for name in _FILES if not (raw / name).is_file()]
    if missing:
        lack = f"{raw} has no {', '.join(missing)}" if root.is_dir() else f"the folder {root} does not exist"
        absence = f"MNIST is not there: {lack}"
        if not download:
            raise FileNotFoundError(f"{absence}, and downloading is switched off; {_REMEDY}")
        fetch = partial(torchvision_class("MNIST"), str(root), download=True)
        download_files(fetch, "MNIST", (raw, raw.parent, root), absence, _REMEDY)
    train, test = (_read(raw, part) for part in ("train", "t10k"))
    if len(train) <= validation:
        fault = f"The MNIST training file in {raw} holds {len(train)} images, of which {validation:g} are"
        raise ValueError(f"{fault} for validation; set data_dir to the original files (60,000 images).")
    kept, out = divide(train.targets, validation, hold_out, data_seed)
    return Splits(train.subset(kept), train.subset(out), test, num_classes=10)


def _idx(path: Path, magic: int) -> NDArray[np.uint8]:
    """The array in an IDX file, whose size is what its header promises."""
    dimensions = magic & 0xFF
    length = 4 * (1 + dimensions)
    content = np.fromfile(path, dtype=np.uint8)
    remedy = "delete it and let it be downloaded again, or set data_dir to a complete copy"
    if len(content) < length:
        raise ValueError(f"{path} is truncated: {len(content)} bytes are not even its header; {remedy}.")
    begins, *shape = struct.unpack(f">{1 + dimensions}I", content[:length].tobytes())
    if begins != magic:
        fault = f"{path} is not the IDX file that its name says"
        raise ValueError(f"{fault} (its first four bytes are {begins:#010x}, not {magic:#010x}); {remedy}.")
    expected, size = length + math.prod(shape), len(content)
    if size != expected:
        state = "truncated" if size < expected else "longer than its header says"
        raise ValueError(f"{path} is {state}: {size:,} bytes, where its header says {expected:,}; {remedy}.")
    return content[length:].reshape(shape)


def _read(raw: Path, part: str) -> Dataset:
    pixels, classes = (_idx(raw / name, magic) for name, magic in _FILES.items() if part in name)
    images = torch.from_numpy(pixels).unsqueeze(1).to(torch.float32).div_(255)
    targets = torch.from_numpy(classes).to(torch.int64)
    if len(images) != len(targets):
        raise ValueError(
            f"MNIST in {raw} has {len(images)} images but {len(targets)} labels in the "
            f"{'training' if part == 'train' else 'test'} files; set data_dir to a complete copy."
        )
    return Dataset(images, targets)
