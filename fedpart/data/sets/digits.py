"""Handwritten digits that come with scikit-learn: real data without a download."""

import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from fedpart.data.dataset import Dataset, Splits
from fedpart.data.loading import DATASETS
from fedpart.randomness.streams import generator

VALIDATION = 250
TEST = 250


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
    train, validation, test = order[: -VALIDATION - TEST], order[-VALIDATION - TEST : -TEST], order[-TEST:]
    return Splits(whole.subset(train), whole.subset(validation), whole.subset(test), num_classes=10)
