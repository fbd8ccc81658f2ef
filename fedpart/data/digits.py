"""Handwritten digits that come with scikit-learn: real data without a download."""

from __future__ import annotations

import torch
from torch.nn import functional

from fedpart.data.dataset import Dataset, Splits
from fedpart.data.sources import DATASETS
from fedpart.rng import generator

VALIDATION = 250
TEST = 250


@DATASETS.register("digits")
def load_digits(data_dir: str | None = None) -> Splits:
    """1,797 handwritten digits (UCI optical recognition, 8x8, by 13 writers), resized bilinearly to 28x28.

    Shuffled once in an order that is part of this data set and depends on no seed of the experiment, then
    1,297 for training, 250 for validation, 250 for test. (The file is ordered by writer: without shuffling,
    the test would be on unknown writers.)

    Args:
        data_dir: not used; the images are inside scikit-learn.

    Returns:
        Splits of inputs [n, 1, 28, 28] float32 in [0, 1] and labels [n] in 0..9.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    try:
        import sklearn.datasets
    except ImportError as error:
        raise ImportError(
            "The data set 'digits' comes with scikit-learn: pip install scikit-learn."
        ) from error
    source = sklearn.datasets.load_digits()
    images = torch.as_tensor(source.images, dtype=torch.float32).unsqueeze(1) / 16  # [1797, 1, 8, 8]
    images = functional.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    whole = Dataset(images, torch.as_tensor(source.target, dtype=torch.int64))
    order = generator(0, "data.digits.order").permutation(len(whole))
    train, validation, test = order[: -VALIDATION - TEST], order[-VALIDATION - TEST : -TEST], order[-TEST:]
    return Splits(whole.subset(train), whole.subset(validation), whole.subset(test), num_classes=10)
