"""Data sets that are changed once, before anything is trained: images turned, normalised or corrupted."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedpart.data.dataset import Dataset, Indices, Splits, places_of
from fedpart.randomness.streams import generator

_BATCH = 4096  # images turned at a time, to bound memory


def rotate(images: Tensor, angles: Tensor) -> Tensor:
    """Turn images ``[n, c, h, w]`` about their centres by angles ``[n]``, radians, counter-clockwise as seen,
    bilinearly; 0 lies outside. A square image turned by 90 degrees falls exactly on its own pixels
    (align_corners=False)."""
    if images.dim() != 4 or angles.shape != images.shape[:1]:
        shapes = f"{list(images.shape)} and {list(angles.shape)}"
        raise ValueError(f"rotate takes images [n, c, h, w] and one angle per image [n], got {shapes}.")
    if not len(images):
        return images
    height, width = images.shape[-2:]
    cos, sin, zero = torch.cos(angles), torch.sin(angles), torch.zeros_like(angles)
    # Where an output point (x, y) is read from in the input, in units of half the image's width and height.
    rows = [cos, -sin * height / width, zero], [sin * width / height, cos, zero]
    matrices = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=1).to(images)  # [n, 2, 3]
    turned = []
    for part, matrix in zip(torch.split(images, _BATCH), torch.split(matrices, _BATCH), strict=True):
        grid = functional.affine_grid(matrix, list(part.shape), align_corners=False)
        turned.append(functional.grid_sample(part, grid, mode="bilinear", align_corners=False))
    return torch.cat(turned)


def rotated(
    dataset: Dataset, seed: int, max_angle: float = math.pi, *, part: int = 0, places: Indices | None = None
) -> Dataset:
    """``dataset`` with every image turned by its own angle ~ U[-max_angle, max_angle], drawn once (App. J.2).

    The angles become the ``groups`` ([m] float32, radians). An image has the same angle whether all are
    turned or those at ``places`` alone; do not take the subset before. Different numbers ``part`` of a data
    set within its source draw different angles."""
    if not 0 < max_angle <= math.pi + 1e-6:
        raise ValueError(f"max_angle is in radians, above 0 and at most pi, got {max_angle}.")
    drawn = generator(seed, "data.rotation", part).uniform(-max_angle, max_angle, len(dataset))
    angles = torch.as_tensor(drawn, dtype=torch.float32)
    if places is not None:
        index = places_of(places, len(dataset))
        dataset, angles = dataset.subset(index), angles[index]
    angles = angles.to(dataset.inputs.device)
    turned = rotate(dataset.inputs, angles)
    return Dataset(turned, dataset.targets, angles, clients=dataset.clients)


def rotated_splits(splits: Splits, seed: int, max_angle: float = math.pi) -> Splits:
    """All three parts rotated by independent angles, validation and test as training is (App. J.2)."""
    numbers = itertools.count()
    return splits.mapped(lambda dataset: rotated(dataset, seed, max_angle, part=next(numbers)))


def normalised(dataset: Dataset, mean: Sequence[float], std: Sequence[float]) -> Dataset:
    """``(image - mean) / std`` of inputs ``[n, c, h, w]``, channel by channel. Rotate first, which fills in
    black."""
    images = _images_of(dataset, "normalised; leave normalise out")
    if not len(mean) == len(std) == images.shape[1]:
        wanted = f"the images have {images.shape[1]} channels; give one of each for every channel"
        raise ValueError(f"normalise has {len(mean)} means and {len(std)} deviations, but {wanted}.")
    shift, scale = (torch.tensor(values).to(images).view(-1, 1, 1) for values in (mean, std))
    if not (shift.isfinite().all() and scale.isfinite().all() and (scale > 0).all()):
        raise ValueError(f"normalise takes finite means and deviations above 0, got {mean} and {std}.")
    scored = None if dataset.evaluation is None else normalised(dataset.evaluation, mean, std)
    return Dataset((images - shift) / scale, dataset.targets, dataset.groups, scored, dataset.clients)


SEVERITIES = (1, 2, 3, 4, 5)


def _blurred(images: Tensor, times: float, random: np.random.Generator) -> Tensor:
    for _ in range(int(times)):
        images = functional.avg_pool2d(functional.pad(images, (1, 1, 1, 1), mode="replicate"), 3, 1)
    return images


def _pixelated(images: Tensor, share: float, random: np.random.Generator) -> Tensor:
    height, width = images.shape[2:]
    small = [max(1, round(share * length)) for length in (height, width)]
    blocks = functional.interpolate(images, small, mode="area")
    return functional.interpolate(blocks, (height, width), mode="nearest-exact")


def _noisy(images: Tensor, deviation: float, random: np.random.Generator) -> Tensor:
    drawn = random.standard_normal(images.shape, dtype="float32")
    return images + deviation * torch.from_numpy(drawn).to(images)


def _with_contrast(images: Tensor, share: float, random: np.random.Generator) -> Tensor:
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + share * (images - mean)


Change = Callable[[Tensor, float, np.random.Generator], Tensor]
CORRUPTIONS: dict[str, tuple[Change, tuple[float, ...]]] = {
    "gaussian_noise": (_noisy, (0.04, 0.08, 0.12, 0.18, 0.26)),
    "box_blur": (_blurred, (1, 2, 3, 4, 5)),
    "contrast": (_with_contrast, (0.75, 0.6, 0.45, 0.3, 0.15)),
    "brightness": (lambda images, added, _: images + added, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "pixelate": (_pixelated, (0.75, 0.6, 0.5, 0.4, 0.3)),
}
"""What is done to images, and its number at each severity."""


def corrupted(dataset: Dataset, corruption: str, severity: int, seed: int = 0) -> Dataset:
    """A data set of images, corrupted and cut off to [0, 1].

    Args:
        dataset: of images ``[n, c, h, w]`` in [0, 1].
        corruption: ``gaussian_noise`` of a standard deviation; ``box_blur``: the mean of 3x3 pixels, so many
            times, edges repeated; ``contrast``: that share of the distance from the image's mean;
            ``brightness`` that is added; ``pixelate``: that share of the pixels in each direction.
        severity: 1 to 5, see :data:`CORRUPTIONS`.
        seed: of the noise.
    """
    if corruption not in CORRUPTIONS or severity not in SEVERITIES:
        known = f"Corruptions are {', '.join(CORRUPTIONS)}, at severities 1 to 5"
        raise ValueError(f"{known}, got {corruption!r} at {severity}; choose one of them.")
    images = _images_of(dataset, "corrupted; set corrupted: false")
    if len(images) and (images.min() < 0 or images.max() > 1):
        raise ValueError(
            f"Images to corrupt have values in [0, 1], got {images.min():g} to {images.max():g}; leave "
            f"normalise out and do it inside the network, or do not corrupt them (corrupted: false)."
        )
    change, levels = CORRUPTIONS[corruption]
    changed = change(images, levels[severity - 1], generator(seed, "corruption", severity))
    return Dataset(changed.clamp(0, 1), dataset.targets)


def _images_of(dataset: Dataset, what: str) -> Tensor:
    images = dataset.inputs
    if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point():
        raise ValueError(f"Only images [n, c, h, w] of real numbers can be {what}.")
    return images
