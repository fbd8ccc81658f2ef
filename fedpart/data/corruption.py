"""Corrupted images: five closed forms at five severities, which are not those of CIFAR-10-C."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fedpart.data.dataset import Dataset
from fedpart.randomness.streams import generator

SEVERITIES = (1, 2, 3, 4, 5)
_NOISE = (0.04, 0.08, 0.12, 0.18, 0.26)
_CONTRAST = (0.75, 0.6, 0.45, 0.3, 0.15)
_BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)
_PIXELATE = (0.75, 0.6, 0.5, 0.4, 0.3)


def _gaussian_noise(images: Tensor, severity: int, seed: int) -> Tensor:
    drawn = generator(seed, "corruption", severity).standard_normal(images.shape, dtype="float32")
    return images + _NOISE[severity - 1] * torch.from_numpy(drawn).to(images)


def _box_blur(images: Tensor, severity: int, seed: int) -> Tensor:
    for _ in range(severity):
        images = functional.avg_pool2d(functional.pad(images, (1, 1, 1, 1), mode="replicate"), 3, 1)
    return images


def _contrast(images: Tensor, severity: int, seed: int) -> Tensor:
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + _CONTRAST[severity - 1] * (images - mean)


def _pixelate(images: Tensor, severity: int, seed: int) -> Tensor:
    height, width = images.shape[2:]
    small = [max(1, round(_PIXELATE[severity - 1] * length)) for length in (height, width)]
    found = functional.interpolate(images, small, mode="area")
    return functional.interpolate(found, (height, width), mode="nearest-exact")


CORRUPTIONS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "gaussian_noise": _gaussian_noise,
    "box_blur": _box_blur,
    "contrast": _contrast,
    "brightness": lambda images, severity, _: images + _BRIGHTNESS[severity - 1],
    "pixelate": _pixelate,
}


def corrupted(dataset: Dataset, corruption: str, severity: int, seed: int = 0) -> Dataset:
    """A data set of images, corrupted and cut off to [0, 1].

    Args:
        dataset: of images ``[n, c, h, w]`` in [0, 1].
        corruption: ``gaussian_noise``: of standard deviation 0.04, 0.08, 0.12, 0.18, 0.26; ``box_blur``: the
            mean of 3x3 pixels, 1 to 5 times, edges repeated; ``contrast``: 0.75, 0.6, 0.45, 0.3, 0.15 of the
            distance from the image's mean; ``brightness``: 0.1 to 0.5 added; ``pixelate``: 0.75, 0.6, 0.5,
            0.4, 0.3 of the pixels in each direction.
        severity: 1 to 5.
        seed: of the noise.

    Raises:
        ValueError: an unknown corruption or severity, or inputs that are no images with values in [0, 1].
    """
    if corruption not in CORRUPTIONS or severity not in SEVERITIES:
        raise ValueError(
            f"Corruptions are {', '.join(CORRUPTIONS)}, at severities 1 to 5, got {corruption!r} at "
            f"{severity}; choose one of them."
        )
    images = dataset.inputs
    if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point():
        raise ValueError("Only images [n, c, h, w] of real numbers can be corrupted; set corrupted: false.")
    if images.min() < 0 or images.max() > 1:
        raise ValueError(
            f"Images to corrupt have values in [0, 1], got {images.min():g} to {images.max():g}; leave "
            f"normalise out and do it inside the network, or do not corrupt them (corrupted: false)."
        )
    found = CORRUPTIONS[corruption](images, severity, seed).clamp(0, 1)
    return Dataset(found, dataset.targets)
