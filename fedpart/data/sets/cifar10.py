"""CIFAR-10 (Krizhevsky 2009), from torchvision's files or as images in a folder or zip file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpart.data.dataset import Splits
from fedpart.data.loading import DATASETS
from fedpart.data.sets.image_folder import load_image_folder
from fedpart.data.sets.torchvision_sets import load_torchvision
from fedpart.data.splitting.hold_out import HoldOut

VALIDATION = 5_000


@DATASETS.register("cifar10")
def load_cifar10(
    data_dir: str | None = None,
    *,
    size: int = 32,
    validation: float = VALIDATION,
    hold_out: HoldOut = "last_of_class",
    download: bool = True,
    limits: Mapping[str, int] | None = None,
    data_seed: int = 0,
) -> Splits:
    """CIFAR-10: 45,000 images for training, 5,000 for validation, 10,000 for test.

    Validation is the last 500 training images of each class; the paper does not say which form it. No mean
    is subtracted. Images that were stored as JPEG differ a little from the original ones.

    Args:
        data_dir: torchvision's folder, with ``cifar-10-batches-py/`` in it (which is looked for first, and
            downloaded into it if nothing is there); or a folder or zip file with ``train/CLASS/`` and
            ``test/CLASS/``; or a folder that contains one of these, called ``cifar10...``.
        size: pixels of a side: smaller images make faster networks; see :func:`.pixels`.
        validation, hold_out, download, limits, data_seed: see :func:`.load_torchvision`.

    Returns:
        Splits of inputs [n, 3, size, size] float32 in [0, 1] and labels [n] in 0..9, in the order of the
        classes' names.

    Raises:
        FileNotFoundError: no ``data_dir``, or files are missing and were not downloaded.
        ValueError: files are damaged, or are not CIFAR-10's.
    """
    choice: Any = {"size": size, "validation": validation, "hold_out": hold_out}
    choice |= {"limits": limits, "data_seed": data_seed}
    images = None if data_dir is None else _image_folder(Path(data_dir).expanduser())
    if images is None:
        return load_torchvision(data_dir, name="CIFAR10", download=download, **choice)
    splits = load_image_folder(str(images), test=0, **choice)
    sizes = [len(splits.train) + len(splits.validation), len(splits.test)]
    if splits.num_classes != 10 or sizes != [50_000, 10_000]:
        raise ValueError(
            f"{images} is not CIFAR-10: it has {splits.num_classes} classes, {sizes[0]} training and "
            f"{sizes[1]} test images; use data: image_folder for images of your own."
        )
    return splits


def _image_folder(root: Path) -> Path | None:
    """Where images lie in folders, or should in a zip file; None: nowhere, or torchvision's are there."""
    named_zip = root.suffix.lower() == ".zip" and not root.is_dir()  # which need not exist
    if named_zip or root.is_file() or (root / "train").is_dir():
        return root
    if (root / "cifar-10-batches-py").is_dir():
        return None
    found = sorted(root.glob("[cC][iI][fF][aA][rR]10*")) if root.is_dir() else []
    return next((path for path in found if path.suffix == ".zip" or (path / "train").is_dir()), None)
